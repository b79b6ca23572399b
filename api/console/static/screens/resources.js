// Lists of models, datasets and evaluators.
import { html } from '/console/vendor/htm-preact.js'
import { at, can, get, query, remove } from '/console/client.js'
import { Action, ErrorBox, Facts, List, State, Time, idOf, number, useLoaded, useParameter } from '/console/ui.js'
import { DatasetState, Upload } from '/console/screens/new_job.js'
import { Timeline } from '/console/screens/events.js'
import { jobKinds } from '/console/kinds.js'

const created = { title: 'Created', show: (r) => html`<${Time} of=${r.createTime} />`, order: 'createTime' }
const state = { title: 'State', show: (r) => html`<${State} of=${r.state} />`, order: 'state' }

// jobLink returns the route of the job with a name.
const jobLink = (name = '') => {
  const kind = jobKinds.find((k) => name.includes(`/${k.collection}/`))
  return kind ? `#/jobs/${kind.short}/${idOf(name)}` : ''
}

// madeBy shows the job that made a model or dataset.
const madeBy = (name) => name && html`<a href=${jobLink(name)}>${idOf(name)}</a>`

export function Models() {
  return html`<h1>Models</h1>
    <${List}
      path="models"
      items="models"
      hint="kind = HF_PEFT_ADDON"
      empty="There are no models."
      columns=${[
        { title: 'Model', show: (m) => idOf(m.name), order: 'name' },
        state,
        { title: 'Kind', show: (m) => m.kind, order: 'kind' },
        { title: 'Base model', show: (m) => idOf(m.baseModel) },
        { title: 'Made by', show: (m) => madeBy(m.sourceJob) },
        created,
        {
          title: '',
          show: (m) =>
            can('write') &&
            m.state === 'READY' &&
            html`<a class="button" href=${`#/new-deployment?model=${encodeURIComponent(m.name)}`}>Deploy</a>`,
        },
      ]}
    />`
}

export function Datasets() {
  return html`<h1>Datasets</h1>
    ${
      can('write') &&
      html`<${Upload}
        done=${(name) => {
          location.hash = `#/datasets/${idOf(name)}`
        }}
      />`
    }
    <${List}
      path="datasets"
      items="datasets"
      hint="exampleCount > 100"
      link=${(d) => `#/datasets/${idOf(d.name)}`}
      empty="There are no datasets."
      columns=${[
        { title: 'Dataset', show: (d) => d.displayName || idOf(d.name), order: 'name' },
        state,
        { title: 'Rows', show: (d) => number(d.exampleCount), order: 'exampleCount' },
        { title: 'Shape', show: (d) => d.rowShape },
        { title: 'Made by', show: (d) => madeBy(d.sourceJobName) },
        created,
      ]}
    />`
}

// Message shows a message of a row of a dataset.
const Message = ({ of: m }) =>
  html`<p class="message">
    <b>${m.role}</b> ${typeof m.content === 'string' ? m.content : JSON.stringify(m.content)}
  </p>`

function RowOf({ row }) {
  if (Array.isArray(row.messages))
    return html`<div class="row">${row.messages.map((m) => html`<${Message} of=${m} />`)}</div>`
  if (row.prompt !== undefined) {
    return html`<div class="row">
      <p class="message"><b>prompt</b> ${row.prompt}</p>
      ${row.completion !== undefined && html`<p class="message"><b>completion</b> ${row.completion}</p>`}
    </div>`
  }
  return html`<pre tabindex="0">${JSON.stringify(row, null, 2)}</pre>`
}

export function Dataset({ rest: [id] }) {
  const name = `datasets/${id}`
  const [tab, setTab] = useParameter('tab', 'rows')
  const { value: d, error } = useLoaded(
    (signal) => get(at(name), { signal }),
    [name],
    (e) => e.subject.endsWith(name),
  )
  const rows = useLoaded(
    (signal) => get(`${at(name)}:preview${query({ pageSize: 20 })}`, { signal }),
    [name, d?.state],
  )
  if (!d)
    return html`<h1>${id}</h1>
      <${ErrorBox} error=${error} />`
  const list = rows.value?.examples || []
  return html`<div class="title">
      <h1>${d.displayName || id}</h1>
      ${
        can('write') &&
        html`<${Action}
          run=${() => remove(at(name))}
          confirm="Delete the dataset?"
          done=${() => {
            location.hash = '#/datasets'
          }}
          >Delete<//
        >`
      }
    </div>
    <${DatasetState} name=${d.name} />
    <${Facts}
      of=${[
        ['Name', d.name],
        ['Made by', madeBy(d.sourceJobName)],
        ['Created', html`<${Time} of=${d.createTime} />`],
      ]}
    />
    <div class="tabs" role="tablist">
      ${Object.entries({ rows: 'Rows', events: 'Events' }).map(
        ([k, t]) => html`<button role="tab" aria-selected=${tab === k} onClick=${() => setTab(k)}>${t}</button>`,
      )}
    </div>
    ${
      tab === 'rows' &&
      (d.state === 'READY'
        ? html`<${ErrorBox} error=${rows.error} />${list.map((r, i) => html`<${RowOf} key=${i} row=${r} />`)}`
        : html`<p class="dim">The rows appear when the dataset is READY.</p>`)
    }
    ${tab === 'events' && html`<${Timeline} name=${d.name} />`}`
}

export function Evaluators() {
  return html`<h1>Evaluators</h1>
    <${List}
      path="evaluators"
      items="evaluators"
      hint="state = ACTIVE"
      empty="There are no evaluators. Create one with: anneal evaluator create ID --dir DIRECTORY"
      columns=${[
        { title: 'Evaluator', show: (e) => idOf(e.name), order: 'name' },
        state,
        { title: 'Message', show: (e) => e.status?.message },
        created,
        {
          title: '',
          show: (e) =>
            can('write') &&
            html`<${Action} run=${() => remove(at(e.name))} confirm="Delete the evaluator?">Delete<//>`,
        },
      ]}
    />`
}
