import { html, useEffect, useState } from '/console/vendor/htm-preact.js'
import { at, can, events, get, query } from '/console/client.js'
import { Action, ErrorBox, Time, useLoaded, useParameter } from '/console/ui.js'

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
  const [tokens, setTokens] = useState([''])
  const token = tokens[tokens.length - 1]
  const { value, error, loading } = useLoaded(
    (signal) =>
      get(path + query({ filter, pageSize: size, orderBy: 'position desc', pageToken: token }), { signal }),
    [path, filter, token],
  )
  const rows = value?.events || []
  return html`<${ErrorBox} error=${error} />${rows.map((e) => html`<${Row} key=${e.position} event=${e} proof />`)}
    ${!rows.length && !error && html`<p class="dim">${loading ? 'Loading…' : 'There are no events.'}</p>`}
    <div class="pager">
      <span>${value && `${value.totalSize} in total`}</span>
      <button disabled=${tokens.length < 2} onClick=${() => setTokens(tokens.slice(0, -1))}>Newer</button>
      <button disabled=${!value?.nextPageToken} onClick=${() => setTokens([...tokens, value.nextPageToken])}>
        Older
      </button>
    </div>`
}

// Timeline shows the events of a resource.
export const Timeline = ({ name }) => html`<${Page} path=${`${at(name)}/events`} filter="" />`

export function Events() {
  const [filter, setFilter] = useParameter('filter')
  const [draft, setDraft] = useState(filter)
  const [live, setLive] = useState([])
  useEffect(() => events.on((e) => e && setLive((all) => [e, ...all].slice(0, kept))), [])
  const path = can('operate') ? '/v1/events' : at('events')
  return html`<h1>Events</h1>
    <form
      class="filter"
      onSubmit=${(e) => {
        e.preventDefault()
        setFilter(draft)
      }}
    >
      <input
        aria-label="Filter"
        value=${draft}
        onInput=${(e) => setDraft(e.target.value)}
        spellcheck="false"
        placeholder='filter, such as type = "deployment.ready.v1"'
      /><button>Filter</button>
    </form>
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
      <${Page} key=${filter} path=${path} filter=${filter} />
    </section>`
}
