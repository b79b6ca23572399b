import { html, useState } from '/console/vendor/htm-preact.js'
import { at, can, get, patch, post, query, quoted, remove, session } from '/console/client.js'
import { Action, ErrorBox, Facts, List, Snippets, State, Time, idOf, useLoaded, useParameter } from '/console/ui.js'
import { readableModels } from '/console/kinds.js'
import { Timeline } from '/console/screens/events.js'

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
        { title: 'State', show: (d) => html`<${State} of=${d.state} />`, order: 'state' },
        { title: 'Model', show: (d) => idOf(d.baseModel) },
        { title: 'Replicas ready', show: ready },
        { title: 'Created', show: (d) => html`<${Time} of=${d.createTime} />`, order: 'createTime' },
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

function Scale({ deployment: d }) {
  const [count, setCount] = useState(String(d.desiredReplicaCount ?? 1))
  return html`<label
      >Replicas <input type="number" min="0" max="10000" value=${count} onInput=${(e) => setCount(e.target.value)}
    /></label>
    <${Action} run=${() => patch(`${at(d.name)}:scale`, { replicaCount: Number(count) })}>Scale<//>`
}

const nameOf = (id) => `accounts/${session.account}/deployments/${id}`

export function Deployment({ rest: [id] }) {
  const name = `deployments/${id}`
  const { value: d, error } = useLoaded(
    (signal) => get(at(name), { signal }),
    [name],
    (e) => e.subject.endsWith(name),
  )
  const [tab, setTab] = useParameter('tab', 'use')
  const addons = useLoaded(
    (signal) => get(at('deployedModels') + query({ filter: `deployment = "${nameOf(id)}"` }), { signal }),
    [id],
    (e) => e.subject.includes('/deployedModels/'),
  )
  if (!d)
    return html`<h1>${id}</h1>
      <${ErrorBox} error=${error} />`
  const deleted = d.state === 'DELETED'
  const stats = d.replicaStats || {}
  return html`<div class="title">
      <h1>${id}</h1>
      <${State} of=${d.state} /> ${
        can('infer') &&
        d.state === 'READY' &&
        html`<a class="button primary" href=${`#/playground?model=${encodeURIComponent(d.baseModel)}`}
          >Playground</a
        >`
      }
      ${can('write') && !deleted && html`<${Action} run=${() => remove(at(d.name))}
        confirm="Delete the deployment?">Delete<//>`}
      ${can('write') && deleted && html`<${Action} run=${() => post(`${at(d.name)}:undelete`)}>Undelete<//>`}
    </div>
    <${ErrorBox} error=${error} />
    <${Facts}
      of=${[
        ['Model', d.baseModel],
        ['Status', d.status?.message],
        ['Replicas ready', ready(d)],
        ['Waiting for a node', stats.pendingSchedulingReplicaCount || null],
        ['Loading the model', stats.downloadingModelReplicaCount || null],
        ['Starting', stats.initializingReplicaCount || null],
        ['Replicas at least', d.minReplicaCount],
        ['Replicas at most', d.maxReplicaCount],
        ['Created', html`<${Time} of=${d.createTime} />`],
      ]}
    />
    ${can('write') && !deleted && html`<div class="controls">
      <${Scale} key=${d.desiredReplicaCount} deployment=${d} /></div>`}
    <div class="tabs" role="tablist">
      ${Object.entries({ use: 'Use', addons: 'Adapters', settings: 'Settings', events: 'Events' }).map(
        ([k, t]) => html`<button role="tab" aria-selected=${tab === k} onClick=${() => setTab(k)}>${t}</button>`,
      )}
    </div>
    ${
      tab === 'use' &&
      html`<${Snippets}
        of=${snippets(d.baseModel, '/v1/chat/completions', {
          messages: [{ role: 'user', content: 'Hello' }],
          max_tokens: 64,
        })}
      />`
    }
    ${
      tab === 'addons' &&
      html`<${ErrorBox} error=${addons.error} />
        <div class="scroll">
          <table>
            <tbody>
              ${(addons.value?.deployedModels || []).map(
                (m) =>
                  html`<tr key=${m.name}>
                    <td>${m.model}</td>
                    <td><${State} of=${m.state} /></td>
                    <td>
                      ${can('write') && html`<${Action} run=${() => remove(at(m.name))}
                        confirm="Unload the adapter?">Unload<//>`}
                    </td>
                  </tr>`,
              )}
            </tbody>
          </table>
        </div>
        ${addons.value && !addons.value.deployedModels?.length && html`<p class="dim">No adapter is loaded.</p>`}`
    }
    ${tab === 'settings' && html`<pre tabindex="0">${JSON.stringify(d, null, 2)}</pre>`}
    ${tab === 'events' && html`<${Timeline} name=${d.name} />`}`
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
