import { html, useEffect, useState } from '/console/vendor/htm-preact.js'
import { at, can, events, get, query } from '/console/client.js'
import { Action, ErrorBox, FilterForm, Pager, Time, useLoaded, usePages, useParameter } from '/console/ui.js'

const size = 50
const kept = 1000 // live events that the page keeps

function Row({ event, proof }) {
  const [proved, setProved] = useState(null)
  const account = event.subject.split('/')[1]
  const prove = () =>
    get(
      can('operate')
        ? `/v1/events/${event.position}:prove`
        : `/v1/accounts/${account}/events/${event.position}:prove`,
    )
  return html`<details class="event">
    <summary>
      <span class="number">${event.position}</span> <b>${event.type}</b> <span>${event.subject}</span>
      <${Time} of=${event.time} />
    </summary>
    <pre tabindex="0">${JSON.stringify(event, null, 2)}</pre>
    ${
      proof &&
      html`<${Action} run=${prove} done=${setProved}>Show the proof<//>${
          proved && html`<pre tabindex="0">${JSON.stringify(proved, null, 2)}</pre>`
        }`
    }
  </details>`
}

// Page shows events page by page, newest first, from a path.
function Page({ path, filter }) {
  const pages = usePages(`${path} ${filter}`)
  const { value, error, loading } = useLoaded(
    (signal) =>
      get(path + query({ filter, pageSize: size, orderBy: 'position desc', pageToken: pages.token }), { signal }),
    [path, filter, pages.token],
  )
  const rows = value?.events || []
  return html`<${ErrorBox} error=${error} />${rows.map((e) => html`<${Row} key=${e.position} event=${e} proof />`)}
    ${!rows.length && !error && html`<p class="dim">${loading ? 'Loading…' : 'There are no events.'}</p>`}
    <${Pager} pages=${pages} page=${value} previous="Newer" next="Older" />`
}

// Timeline shows the events of a resource.
export const Timeline = ({ name }) => html`<${Page} path=${`${at(name)}/events`} filter="" />`

export function Events() {
  const [filter, setFilter] = useParameter('filter')
  const [live, setLive] = useState([])
  useEffect(() => events.on((e) => e && setLive((all) => [e, ...all].slice(0, kept))), [])
  const path = can('operate') ? '/v1/events' : at('events')
  return html`<h1>Events</h1>
    <${FilterForm} filter=${filter} setFilter=${setFilter} hint='type = "deployment.ready.v1"' />
    ${
      !filter &&
      live.length > 0 &&
      html`<section aria-label="New events" aria-live="off">
        <h2>Since this page was opened</h2>
        ${live.slice(0, 100).map((e) => html`<${Row} key=${e.position} event=${e} proof />`)}
        ${live.length > 100 && html`<p class="dim">and ${live.length - 100} more</p>`}
      </section>`
    }
    <section>
      <h2>${filter ? 'Events that match' : 'Events'}</h2>
      <${Page} path=${path} filter=${filter} />
    </section>`
}
