import { html, useState } from '/console/vendor/htm-preact.js'
import { all, at, can, get, post, query, quoted, readableModels, remove } from '/console/client.js'
import { Action, Choice, Delete, ErrorBox, Facts, Json, Pending, Snippets, State } from '/console/ui.js'
import { Table, Tabs, Time, idOf, mib, useLoaded, useOne } from '/console/ui.js'
import { useParameter } from '/console/ui.js'
import { List, createdColumn, stateColumn } from '/console/list.js'
import { History } from '/console/screens/history.js'
import { Load, Scaling } from '/console/screens/load.js'
import { Release } from '/console/screens/release.js'

const ready = (d) => `${d.replicaStats?.readyReplicaCount || 0} of ${d.desiredReplicaCount || 0}`

export function Deployments() {
  return html`<div class="title">
      <h1>Deployments</h1>
      ${can('write') && html`<a class="button primary" href="#/new-deployment">New deployment</a>`}
    </div>
    <${List}
      path="deployments"
      items="deployments"
      hint="state = READY"
      link=${(d) => `#/deployments/${idOf(d.name)}`}
      empty="There are no deployments."
      columns=${[
        { title: 'Deployment', show: (d) => idOf(d.name), order: 'name' },
        stateColumn,
        { title: 'Model', show: (d) => idOf(d.baseModel) },
        { title: 'Replicas ready', show: ready },
        createdColumn,
      ]}
    />`
}

// pythonOf returns a JSON value as a literal of Python.
function pythonOf(v) {
  if (Array.isArray(v)) return `[${v.map(pythonOf).join(', ')}]`
  if (v && typeof v === 'object') {
    return `{${Object.entries(v).map(([k, e]) => `${JSON.stringify(k)}: ${pythonOf(e)}`).join(', ')}}`
  }
  return { true: 'True', false: 'False', null: 'None' }[String(v)] && typeof v !== 'string'
    ? { true: 'True', false: 'False', null: 'None' }[String(v)]
    : JSON.stringify(v)
}

// snippets returns requests to a model in several languages.
export function snippets(model, path, body) {
  const url = `${location.origin}/v1`
  const chat = path.includes('chat')
  const text = JSON.stringify({ model, ...body }, null, 2)
  const fields = Object.entries({ model, ...body })
  const python = fields.map(([k, v]) => `    ${k}=${pythonOf(v)},`).join('\n')
  const method = chat ? 'chat.completions' : 'completions'
  return {
    curl:
      `curl ${location.origin}${path} \\\n  -H "Authorization: Bearer $ANNEAL_API_KEY" \\\n` +
      `  -H "Content-Type: application/json" \\\n` +
      `  -d '${text.replaceAll("'", "'\\''")}'`,
    JavaScript:
      `import OpenAI from 'openai'\n\n` +
      `const client = new OpenAI({ baseURL: '${url}', apiKey: process.env.ANNEAL_API_KEY })\n` +
      `const response = await client.${method}.create(${text})\nconsole.log(response.choices[0])`,
    Python:
      `import os\nfrom openai import OpenAI\n\n` +
      `client = OpenAI(base_url="${url}", api_key=os.environ["ANNEAL_API_KEY"])\n` +
      `response = client.${method}.create(\n${python}\n)\nprint(response.choices[0])`,
    Go:
      `body := strings.NewReader(\`${text.replaceAll('`', '` + "`" + `')}\`)\n` +
      `req, err := http.NewRequest("POST", "${location.origin}${path}", body)\nif err != nil {\n\treturn err\n}\n` +
      'req.Header.Set("Authorization", "Bearer "+os.Getenv("ANNEAL_API_KEY"))\nres, err := http.DefaultClient.Do(req)',
  }
}

// Addons shows the adapters of a deployment, and loads another one.
function Addons({ deployment: d }) {
  const [model, setModel] = useState('')
  const { value, error, reload } = useLoaded(
    async (signal) => {
      const of = (path, filter) => get(at(path) + query({ filter, pageSize: 200 }), { signal })
      const [loaded, models] = await Promise.all([
        of('deployedModels', `deployment = "${d.name}"`),
        of('models', `kind = HF_PEFT_ADDON AND state = READY AND baseModel = "${d.baseModel}"`),
      ])
      return { loaded: loaded.deployedModels || [], models: models.models || [] }
    },
    [d.name],
    (e) => e.subject.includes('/deployedModels/'),
  )
  const rest = (value?.models || []).filter((m) => !value.loaded.some((l) => l.model === m.name))
  return html`<${ErrorBox} error=${error} />
    ${
      value &&
      html`<${Table}
        head=${['Adapter', 'State', 'Status', '']}
        empty="No adapter is loaded."
        rows=${value.loaded.map((m) => [
          m.model,
          html`<${State} of=${m.state} />`,
          m.status?.message,
          can('write') && html`<${Action} run=${() => remove(at(m.name))} confirm="Unload the adapter?">Unload<//>`,
        ])}
      />`
    }
    ${
      can('write') &&
      rest.length > 0 &&
      html`<div class="controls">
        <${Choice}
          label="Adapter"
          value=${model}
          set=${setModel}
          options=${[['', 'choose a model'], ...rest.map((m) => [m.name, idOf(m.name)])]}
        />
        <${Action} run=${() => post(at('deployedModels'), { model, deployment: d.name })} done=${reload}>Load<//>
      </div>`
    }
    ${d.enableAddons ? null : html`<p class="dim">The deployment was created without enableAddons.</p>`}`
}

// Nodes shows the operator where replicas run and, if some wait, what each node has free.
function Nodes({ deployment: d, waiting }) {
  const { value } = useLoaded(
    (signal) => all(at('accounts/system/nodes'), 'nodes', { orderBy: 'name' }, signal),
    [],
    (e) => e.subject.includes('/nodes/'),
  )
  const nodes = value || []
  const devices = (t) => Object.entries(t?.accelerators || {}).map(([k, n]) => `${n} × ${k}`).join(', ') || 'CPU'
  const replicas = nodes.flatMap((n) =>
    (n.allocations || []).filter((a) => a.for === d.name).map((a) => [`${a.replica} on ${idOf(n.name)}`, n, a]),
  )
  return html`<${Table}
      label="Replicas"
      head=${['Replica', 'Devices', 'Memory', 'Since', 'Node']}
      empty="No node has a replica."
      rows=${replicas.map(([title, n, a]) => [
        title,
        devices(a.takes),
        mib(a.takes?.memoryMib),
        html`<${Time} of=${a.since} />`,
        html`<${State} of=${n.state} />`,
      ])}
    />
    ${
      waiting > 0 &&
      html`<${Table}
        label="Nodes"
        head=${['Node', 'State', 'Free CPUs', 'Free memory', 'Devices', 'Used devices']}
        rows=${nodes.map((n) => [
          idOf(n.name),
          html`<${State} of=${n.state === 'READY' ? n.scheduling : n.state} />`,
          ((n.capacity?.cpuMilli || 0) - (n.used?.cpuMilli || 0)) / 1000,
          mib((n.capacity?.memoryMib || 0) - (n.used?.memoryMib || 0)),
          devices(n.capacity),
          devices(n.used),
        ])}
      />`
    }`
}

const deploymentTabs = {
  use: 'Use',
  load: 'Load',
  scaling: 'Scaling',
  addons: 'Adapters',
  release: 'Release',
  settings: 'Settings',
  events: 'Events',
}

export function Deployment({ rest: [id] }) {
  const { value: d, error, reload } = useOne(`deployments/${id}`)
  const [tab, setTab] = useParameter('tab', 'use')
  if (!d)
    return html`<${Pending} title=${id} error=${error} />`
  const deleted = d.state === 'DELETED'
  const stats = d.replicaStats || {}
  const waiting = stats.pendingSchedulingReplicaCount || 0
  const edit = can('write') && !deleted
  return html`<div class="title">
      <h1>${id}</h1>
      <${State} of=${d.state} /> ${
        can('infer') &&
        d.state === 'READY' &&
        html`<a class="button primary" href=${`#/playground?model=${encodeURIComponent(d.baseModel)}`}
          >Playground</a
        >`
      }
      ${edit && html`<${Delete} name=${d.name} what="deployment" />`}
      ${can('write') && deleted && html`<${Action} run=${() => post(`${at(d.name)}:undelete`)}>Undelete<//>`}
    </div>
    <${ErrorBox} error=${error} />
    ${
      waiting > 0 &&
      html`<div class="error" role="status">
        <p>${d.status?.message || `${waiting} replicas wait for a node.`}</p>
      </div>`
    }
    <${Facts}
      of=${[
        ['Model', html`<a href=${`#/models/${idOf(d.baseModel)}`}>${d.baseModel}</a>`],
        ['Status', !waiting && d.status?.message],
        ['Replicas ready', ready(d)],
        ['Loading the model', stats.downloadingModelReplicaCount || null],
        ['Starting', stats.initializingReplicaCount || null],
        ['Replicas at least', d.minReplicaCount],
        ['Replicas at most', d.maxReplicaCount],
        ['Serves weights of', d.hotLoad?.served?.job],
        ['Loads weights of', d.hotLoad?.loading?.job],
        ['Created', html`<${Time} of=${d.createTime} />`],
      ]}
    />
    ${can('operate') && html`<${Nodes} deployment=${d} waiting=${waiting} />`}
    <${Tabs} of=${deploymentTabs} tab=${tab} setTab=${setTab} label="Details">
      ${
        tab === 'use' &&
        html`<${Snippets}
          of=${snippets(d.baseModel, '/v1/chat/completions', {
            messages: [{ role: 'user', content: 'Hello' }],
            max_tokens: 64,
          })}
        />`
      }
      ${tab === 'load' && html`<${Load} deployment=${d} />`}
      ${tab === 'scaling' && html`<${Scaling} key=${d.updateTime} deployment=${d} edit=${edit} />`}
      ${tab === 'addons' && html`<${Addons} deployment=${d} />`} ${tab === 'settings' && html`<${Json} of=${d} />`}
      ${tab === 'release' && html`<${Release} deployment=${d} edit=${edit} reload=${reload} />`}
      ${tab === 'events' && html`<${History} name=${d.name} />`}
    <//>`
}

export function NewDeployment() {
  const [model, setModel] = useParameter('model')
  const [id, setId] = useState(model ? idOf(model) : '')
  const [min, setMin] = useState('1')
  const [max, setMax] = useState('1')
  const { value: models } = useLoaded(readableModels, [])
  const body = { baseModel: model, minReplicaCount: Number(min), maxReplicaCount: Number(max) }
  const create = () => post(at('deployments') + query({ deploymentId: id }), body)
  return html`<h1>New deployment</h1>
    <div class="form">
      <label
        >Model
        <select
          value=${model}
          onChange=${(e) => {
            setModel(e.target.value)
            setId(idOf(e.target.value))
          }}
        >
          <option value="">choose a model</option>
          ${(models || [])
            .filter((m) => m.state === 'READY')
            .map((m) => html`<option value=${m.name}>${idOf(m.name)}</option>`)}
          ${model && !models?.some((m) => m.name === model) &&
            html`<option value=${model}>${idOf(model)}</option>`}
        </select></label
      >
      <label>ID <input value=${id} onInput=${(e) => setId(e.target.value)} /></label>
      <label
        >Replicas at least <input type="number" min="0" value=${min} onInput=${(e) => setMin(e.target.value)}
      /></label>
      <label
        >Replicas at most <input type="number" min="1" value=${max} onInput=${(e) => setMax(e.target.value)}
      /></label>
      <${Snippets}
        of=${{
          CLI: `anneal deployment create ${quoted(id || 'ID')} --model ${quoted(model || 'MODEL')} ` +
            `--min-replicas ${quoted(min)} --max-replicas ${quoted(max)}`,
          curl:
            `curl ${quoted(`${location.origin}${at('deployments')}${query({ deploymentId: id || 'ID' })}`)} \\\n` +
            `  -H "Authorization: Bearer $ANNEAL_API_KEY" \\\n  -d ${quoted(JSON.stringify(body))}`,
        }}
      />
      <${Action}
        primary
        run=${create}
        done=${(d) => {
          location.hash = `#/deployments/${idOf(d.name)}`
        }}
        >Create<//
      >
    </div>`
}
