// Models and datasets.
import { html, useState } from '/console/vendor/htm-preact.js'
import { at, baseOf, can, fileOf, get, jobKinds, post, query } from '/console/client.js'
import { Action, Choice, Delete, ErrorBox, Facts, Field, Json, Pending, State } from '/console/ui.js'
import { Table, Tabs, Time, idOf, mib, number, useLoaded } from '/console/ui.js'
import { useOne, useParameter } from '/console/ui.js'
import { List, createdColumn, stateColumn } from '/console/list.js'
import { DatasetState, Upload } from '/console/screens/new_job.js'
import { History } from '/console/screens/history.js'

// jobLink returns the route of the job with a name.
const jobLink = (name = '') => {
  const kind = jobKinds.find((k) => name.includes(`/${k.collection}/`))
  return kind ? `#/jobs/${kind.short}/${idOf(name)}` : ''
}

// madeBy shows the job that made a model or dataset.
const madeBy = (name) => name && html`<a href=${jobLink(name)}>${idOf(name)}</a>`

// lineage returns what a model was made from, and what serves it: [stage, name, state, time, route].
async function lineage(m, signal) {
  const own = (collection, filter) =>
    get(at(collection) + query({ filter, pageSize: 50 }), { signal }).then((page) => page[collection] || [])
  const known = (name) => get(at(name), { signal }).catch(() => ({ name, state: 'DELETED' })) // or not visible
  const rows = []
  const add = (stage, r, route) => r?.name && rows.push([stage, r.name, r.state, r.createTime, route])
  if (m.sourceJob) {
    const job = await known(m.sourceJob)
    const inputs = [job.dataset, job.evaluationDataset].filter((n) => n?.startsWith('accounts/'))
    for (const d of await Promise.all(inputs.map(known))) add('Dataset', d, `#/datasets/${idOf(d.name)}`)
    if (job.evaluator) add('Evaluator', await known(job.evaluator), `#/evaluators/${idOf(job.evaluator)}`)
    const base = baseOf(job) || m.baseModel
    if (base) add('Base model', await known(base), `#/models/${idOf(base)}`)
    add('Job', job, jobLink(job.name))
  } else if (m.baseModel) add('Base model', await known(m.baseModel), `#/models/${idOf(m.baseModel)}`)
  add('Model', m, `#/models/${idOf(m.name)}`)
  const [served, loaded] = await Promise.all([
    own('deployments', `baseModel = "${m.name}"`),
    own('deployedModels', `model = "${m.name}"`),
  ])
  for (const d of served) add('Deployment', d, `#/deployments/${idOf(d.name)}`)
  for (const l of loaded) {
    const d = { name: l.deployment, state: l.state, createTime: l.createTime }
    add('Deployment', d, `#/deployments/${idOf(l.deployment)}?tab=addons`)
  }
  return rows
}

const stages = [['Dataset', 'Evaluator', 'Base model'], ['Job'], ['Model'], ['Deployment']]

// Lineage shows the way from datasets over the job to the model and its deployments, as a picture and a table.
function Lineage({ of: rows }) {
  const steps = stages.map((s) => rows.filter(([stage]) => s.includes(stage))).filter((s) => s.length)
  return html`<ol class="lineage" aria-label="Lineage">
      ${steps.map(
        (step) =>
          html`<li>
            ${step.map(
              ([stage, name, state, , route]) =>
                html`<a href=${route}><small>${stage}</small> <b>${idOf(name)}</b> <${State} of=${state} /></a>`,
            )}
          </li>`,
      )}
    </ol>
    <${Table}
      label="Lineage"
      head=${['Name', 'Kind', 'State', 'Created']}
      rows=${rows.map(([stage, name, state, time]) => [
        name,
        stage,
        html`<${State} of=${state} />`,
        html`<${Time} of=${time} />`,
      ])}
    />`
}

export function Model({ rest: [id] }) {
  const { value: m, error } = useOne(`models/${id}`)
  const [tab, setTab] = useParameter('tab', 'lineage')
  const made = useLoaded(
    async (signal) => (m ? lineage(m, signal) : []),
    [m?.name, m?.updateTime],
    (e) => /\/(deployments|deployedModels)\//.test(e.subject),
  )
  if (!m) return html`<${Pending} title=${id} error=${error} />`
  return html`<div class="title">
      <h1>${id}</h1>
      <${State} of=${m.state} />
      ${
        can('write') &&
        html`${
          m.state === 'READY' &&
          html`<a class="button primary" href=${`#/new-deployment?model=${encodeURIComponent(m.name)}`}>Deploy</a>`
        }
          <${Delete} name=${m.name} what="model" to="#/models" />`
      }
    </div>
    <${ErrorBox} error=${error} />
    <${Facts}
      of=${[
        ['Name', m.name],
        ['Kind', m.kind],
        ['Status', m.status?.message],
        ['Base model', m.baseModel],
        ['Made by', madeBy(m.sourceJob)],
        ['Parameters', m.parameterCount && number(m.parameterCount)],
        ['Context', m.contextLength && `${number(m.contextLength)} tokens`],
        ['Precision', m.precision],
        ['Size', m.sizeBytes && mib(Math.ceil(m.sizeBytes / 2 ** 20))],
        ['Created', html`<${Time} of=${m.createTime} />`],
      ]}
    />
    <${Tabs}
      of=${{ lineage: 'Lineage', settings: 'Settings', events: 'Events' }}
      tab=${tab}
      setTab=${setTab}
      label="Details"
    >
      ${
        tab === 'lineage' &&
        html`<${ErrorBox} error=${made.error} />${made.value?.length > 0 && html`<${Lineage} of=${made.value} />`}`
      }
      ${tab === 'settings' && html`<${Json} of=${m} />`} ${tab === 'events' && html`<${History} name=${m.name} />`}
    <//>`
}

export function Models() {
  return html`<h1>Models</h1>
    <${List}
      path="models"
      items="models"
      hint="kind = HF_PEFT_ADDON"
      link=${(m) => `#/models/${idOf(m.name)}`}
      empty="There are no models."
      columns=${[
        { title: 'Model', show: (m) => idOf(m.name), order: 'name' },
        stateColumn,
        { title: 'Kind', show: (m) => m.kind, order: 'kind' },
        { title: 'Base model', show: (m) => idOf(m.baseModel) },
        { title: 'Made by', show: (m) => madeBy(m.sourceJob) },
        createdColumn,
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
        stateColumn,
        { title: 'Rows', show: (d) => number(d.exampleCount), order: 'exampleCount' },
        { title: 'Shape', show: (d) => d.rowShape },
        { title: 'Made by', show: (d) => madeBy(d.sourceJobName) },
        createdColumn,
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
  const { value: d, error } = useOne(name)
  const rows = useLoaded(
    (signal) => get(`${at(name)}:preview${query({ pageSize: 20 })}`, { signal }),
    [name, d?.state],
  )
  if (!d) return html`<${Pending} title=${id} error=${error} />`
  const list = rows.value?.examples || []
  return html`<div class="title">
      <h1>${d.displayName || id}</h1>
      ${can('write') && html`<${Delete} name=${name} what="dataset" to="#/datasets" />`}
    </div>
    <${DatasetState} name=${d.name} />
    <${Facts}
      of=${[
        ['Name', d.name],
        ['Made by', madeBy(d.sourceJobName)],
        ['Created', html`<${Time} of=${d.createTime} />`],
      ]}
    />
    ${can('write') && ['UPLOADING', 'FAILED'].includes(d.state) && html`<${Upload} into=${id} />`}
    <${Tabs}
      of=${{ rows: 'Rows', settings: 'Settings', events: 'Events' }}
      tab=${tab}
      setTab=${setTab}
      label="Details"
    >
      ${
        tab === 'rows' &&
        (d.state === 'READY'
          ? html`<${ErrorBox} error=${rows.error} />${list.map((r, i) => html`<${RowOf} key=${i} row=${r} />`)}`
          : html`<p class="dim">The rows appear when the dataset is READY.</p>`)
      }
      ${tab === 'settings' && html`<${Json} of=${d} />`} ${tab === 'events' && html`<${History} name=${d.name} />`}
    <//>`
}

// Evaluators: their code, their build log, and a try on rows.

export function Evaluators() {
  return html`<h1>Evaluators</h1>
    <${List}
      path="evaluators"
      items="evaluators"
      hint="state = ACTIVE"
      link=${(e) => `#/evaluators/${idOf(e.name)}`}
      empty="There are no evaluators. Create one with: anneal evaluator create ID --dir DIRECTORY"
      columns=${[
        { title: 'Evaluator', show: (e) => idOf(e.name), order: 'name' },
        stateColumn,
        { title: 'Message', show: (e) => e.status?.message },
        createdColumn,
      ]}
    />`
}

// Code shows the files of an evaluator's code that were given in its criteria.
function Code({ evaluator: e }) {
  const files = (e.criteria || []).flatMap((c) => Object.entries(c.codeSnippets?.fileContents || {}))
  return html`<${Facts}
      of=${[
        ['Entry point', e.entryPoint],
        ['Requirements', e.requirements],
        ['Secrets', (e.secrets || []).map(idOf).join(', ')],
        ['Default dataset', e.defaultDataset],
      ]}
    />
    ${files.map(
      ([name, text]) =>
        html`<h2>${name}</h2>
          <pre tabindex="0">${text}</pre>`,
    )}
    ${!files.length && html`<p class="dim">The code was uploaded as an archive, which the API does not return.</p>`}`
}

function BuildLog({ evaluator: e }) {
  const { value, error } = useLoaded(
    async (signal) => {
      const { buildLogSignedUri } = await get(`${at(e.name)}:getBuildLogEndpoint`, { signal })
      const response = await fileOf(buildLogSignedUri, signal)
      return response ? response.text() : ''
    },
    [e.name, e.updateTime],
  )
  return html`<${ErrorBox} error=${error} />
    <pre class="log" tabindex="0">${value ?? (error ? '' : 'Loading…')}</pre>`
}

// answered returns rows in which a model's response replaces the last message of the assistant.
async function answered(rows, model, samples, temperature, signal) {
  const made = rows.flatMap((row) => {
    const messages = row.messages.at(-1)?.role === 'assistant' ? row.messages.slice(0, -1) : row.messages
    return Array.from({ length: samples }, () => ({ ...row, messages }))
  })
  return Promise.all(
    made.map(async (row) => {
      const body = { model, messages: row.messages, temperature, max_tokens: 128 }
      const { choices } = await post('/inference/v1/chat/completions', body, { signal })
      const content = choices[0].message.content
      return { ...row, messages: [...row.messages, { role: 'assistant', content }] }
    }),
  )
}

const maxRows = 20 // rows of a try

// Try scores rows of a dataset or of the form, with their own answers or those of a model.
function Try({ evaluator: e }) {
  const [s, setS] = useState({
    dataset: e.defaultDataset || '',
    rows: '',
    model: '',
    max: '5',
    samples: '1',
    heat: '0',
  })
  const [result, setResult] = useState(null)
  const set = (name) => (to) => setS({ ...s, [name]: to })
  const choices = useLoaded(async (signal) => {
    const [datasets, models] = await Promise.all([
      get(at('datasets') + query({ filter: 'state = READY', pageSize: 200, orderBy: 'createTime desc' }), { signal }),
      get('/inference/v1/models', { signal }),
    ])
    return {
      datasets: datasets.datasets || [],
      models: models.data.filter((m) => m.deployed && m.kind !== 'SPEECH_MODEL'),
    }
  }, [])
  const run = async () => {
    const max = Math.min(maxRows, Number(s.max) || 1)
    let rows = s.rows
      .split('\n')
      .filter((l) => l.trim())
      .map((l) => JSON.parse(l))
    if (!rows.length) {
      if (!s.dataset) throw new Error('choose a dataset, or enter rows')
      rows = (await get(`${at(s.dataset)}:preview${query({ pageSize: max })}`)).examples || []
    }
    rows = rows.slice(0, max)
    if (s.model) rows = await answered(rows, s.model, Math.min(8, Number(s.samples) || 1), Number(s.heat))
    const scored = await post(`${at('evaluators')}:previewEvaluator`, {
      evaluator: { name: e.name },
      sampleData: rows,
      maxSamples: rows.length,
    })
    return { ...scored, rows }
  }
  const found = choices.value || { datasets: [], models: [] }
  return html`<${ErrorBox} error=${choices.error} />
    <div class="controls">
      <${Choice}
        label="Dataset"
        value=${s.dataset}
        set=${set('dataset')}
        options=${[['', 'choose a dataset'], ...found.datasets.map((d) => [d.name, d.displayName || idOf(d.name)])]}
      />
      <${Field} label="Rows" type="number" min="1" max=${maxRows} value=${s.max} set=${set('max')} />
      <${Choice}
        label="Answers"
        value=${s.model}
        set=${set('model')}
        options=${[['', 'those of the rows'], ...found.models.map((m) => [m.id, `of ${m.id}`])]}
      />
      <${Field} label="Answers to a row" type="number" min="1" max="8" value=${s.samples} set=${set('samples')} />
      <${Field} label="Temperature" type="number" min="0" max="2" step="0.1" value=${s.heat} set=${set('heat')} />
      <${Action} primary run=${run} done=${setResult}>Score<//>
    </div>
    <label class="prompt"
      >Rows as JSONL, instead of a dataset
      <textarea rows="3" spellcheck="false" value=${s.rows} onInput=${(x) => set('rows')(x.target.value)}></textarea>
    </label>
    ${
      result &&
      html`<p role="status">
          Rows scored: ${number(result.totalSamples)}, in ${number(result.totalRuntimeMs)} ms
        </p>
        <${Table}
          head=${['Answer', 'Score', 'Reason', 'Metrics', 'Output']}
          rows=${result.results.map((r, i) => [
            html`${result.rows[i].messages?.at(-1)?.content ?? JSON.stringify(result.rows[i])}`,
            r.success ? r.score : 'none',
            r.reason,
            Object.entries(r.perMetricEvals || {}).map(([k, v]) => html`<span class="metric">${k} ${v}</span>`),
            [result.stdout[i], result.stderr[i]].filter(Boolean).join('\n'),
          ])}
        />`
    }`
}

const evaluatorTabs = { code: 'Code', log: 'Build log', try: 'Try', settings: 'Settings', events: 'Events' }

export function Evaluator({ rest: [id] }) {
  const { value: e, error } = useOne(`evaluators/${id}`)
  const [tab, setTab] = useParameter('tab', 'code')
  if (!e) return html`<${Pending} title=${id} error=${error} />`
  return html`<div class="title">
      <h1>${id}</h1>
      <${State} of=${e.state} />
      ${can('write') && html`<${Delete} name=${e.name} what="evaluator" to="#/evaluators" />`}
    </div>
    <${ErrorBox} error=${error} />
    <${Facts}
      of=${[
        ['Name', e.name],
        ['Status', e.status?.message],
        ['Created', html`<${Time} of=${e.createTime} />`],
      ]}
    />
    <${Tabs} of=${evaluatorTabs} tab=${tab} setTab=${setTab} label="Details">
      ${tab === 'code' && html`<${Code} evaluator=${e} />`} ${tab === 'log' && html`<${BuildLog} evaluator=${e} />`}
      ${tab === 'try' && (can('write') ? html`<${Try} evaluator=${e} />` : html`<p>The role does not permit this.</p>`)}
      ${tab === 'settings' && html`<${Json} of=${e} />`} ${tab === 'events' && html`<${History} name=${e.name} />`}
    <//>`
}
