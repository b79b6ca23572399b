import { html, useState } from '/console/vendor/htm-preact.js'
import { can, get, query } from '/console/client.js'
import { Action, Field, FilterForm, Table, Tabs, number, useParameter } from '/console/ui.js'
import { Detail, eventsAfter, Timeline, changeOf, eventsPath, positionAt } from '/console/screens/history.js'

const fields = ['type', 'subject', 'actor', 'time', 'position', 'cause', 'correlation', 'state', 'controlplane']
const maxEvents = 5000 // events that a difference reads

// Fields shows the fields of a resource that differ between two positions.
function Fields({ name, from, to }) {
  const [change, setChange] = useState(null)
  if (!change) return html`<${Action} run=${() => changeOf(name, from, to)} done=${setChange}>Fields<//>`
  if (!change.before && !change.after) return 'not a resource of the API'
  const kind = !change.before ? 'created' : !change.after ? 'deleted' : 'changed'
  return html`${kind}${
    kind === 'changed' &&
    html`: ${change.fields.map(([k, a, b]) => html`<div><code>${k}</code> ${a || '–'} → ${b || '–'}</div>`)}`
  }`
}

// Difference shows which resources changed between two positions or times.
function Difference() {
  const [from, setFrom] = useParameter('from')
  const [to, setTo] = useParameter('to')
  const [found, setFound] = useState(null)
  const run = async () => {
    const [a, b] = await Promise.all([positionAt(from), positionAt(to)])
    const filter = `position > ${a} AND position <= ${b}`
    // the API reads the whole log for each page that a filter selects: so it only counts, and the stream has the events
    const { totalSize } = await get(eventsPath() + query({ filter, pageSize: 1 }))
    const list = []
    if (totalSize) {
      for await (const e of eventsAfter(eventsPath(), a)) {
        if (list.push(e) >= Math.min(maxEvents, totalSize)) break
      }
    }
    const by = new Map()
    for (const e of list) by.set(e.subject, [...(by.get(e.subject) || []), e])
    return { a, b, list, by }
  }
  return html`<div class="controls">
      <${Field} label="From" value=${from} set=${setFrom} placeholder="position or time" />
      <${Field} label="To" value=${to} set=${setTo} placeholder="position or time" />
      <${Action} primary run=${run} done=${setFound}>Compare<//>
    </div>
    ${
      found &&
      html`<p role="status">
          ${number(found.list.length)} events of ${number(found.by.size)} resources after position
          ${` ${found.a} up to ${found.b}`}${
            found.list.length >= maxEvents && html`; only the first ${number(maxEvents)} events are read`
          }
        </p>
        <${Table}
          head=${['Resource', 'Events', 'Last event', 'What changed']}
          empty="Nothing changed."
          rows=${[...found.by].map(([name, list]) => [
            name,
            list.length,
            list.at(-1).type,
            can('read') && html`<${Fields} key=${found.a} name=${name} from=${found.a} to=${found.b} />`,
          ])}
        />`
    }`
}

export function Events() {
  const [filter, setFilter] = useParameter('filter')
  const [tab, setTab] = useParameter('tab', 'timeline')
  const [chosen, choose] = useState(null)
  return html`<h1>Events</h1>
    <${Tabs} of=${{ timeline: 'Timeline', difference: 'Difference' }} tab=${tab} setTab=${setTab} label="Views">
      ${
        tab === 'difference'
          ? html`<${Difference} />`
          : html`<${FilterForm}
                filter=${filter}
                setFilter=${setFilter}
                hint='type = "deployment.ready.v1"'
                fields=${fields}
              />
              <${Timeline}
                path=${eventsPath()}
                filter=${filter}
                chosen=${chosen}
                choose=${choose}
              />
              ${chosen && html`<${Detail} event=${chosen} choose=${choose} />`}`
      }
    <//>`
}
