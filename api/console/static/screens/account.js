// API keys, quotas and usage of the account.
import { html, useState } from '/console/vendor/htm-preact.js'
import { at, can, get, post, query, remove } from '/console/client.js'
import { Action, ErrorBox, FilterForm, List, Pager, Time, idOf, number } from '/console/ui.js'
import { useLoaded, usePages, useParameter } from '/console/ui.js'

export function Keys() {
  const [id, setId] = useState('')
  const [role, setRole] = useState('user')
  const [made, setMade] = useState(null)
  return html`<h1>API keys</h1>
    <div class="controls">
      <label>ID <input value=${id} onInput=${(e) => setId(e.target.value)} /></label>
      <label
        >Role
        <select value=${role} onChange=${(e) => setRole(e.target.value)}>
          ${['admin', 'user', 'inference', 'reader'].map((r) => html`<option value=${r}>${r}</option>`)}
        </select></label
      >
      <${Action} primary run=${() => post(at('apiKeys'), { apiKeyId: id, apiKey: { role } })} done=${setMade}
        >Create a key<//
      >
    </div>
    ${
      made &&
      html`<div class="secret" role="status">
        <p>This is the only time that the key is shown. Copy it now.</p>
        <code>${made.key}</code><button onClick=${() => setMade(null)}>Hide</button>
      </div>`
    }
    <${List}
      path="apiKeys"
      items="apiKeys"
      hint="role = admin"
      empty="There are no keys."
      columns=${[
        { title: 'Key', show: (k) => idOf(k.name), order: 'name' },
        { title: 'Role', show: (k) => k.role, order: 'role' },
        { title: 'Begins with', show: (k) => html`<code>${k.prefix}</code>` },
        { title: 'Last used', show: (k) => html`<${Time} of=${k.lastUsedTime} />` },
        { title: 'Created', show: (k) => html`<${Time} of=${k.createTime} />`, order: 'createTime' },
        {
          title: '',
          show: (k) => html`<${Action} run=${() => remove(at(k.name))} confirm="Delete the key?">Delete<//>`,
        },
      ]}
    />`
}

export function Quotas() {
  const { value, error } = useLoaded(
    (signal) => get(at('quotas') + query({ pageSize: 200 }), { signal }),
    [],
    () => true,
  )
  return html`<h1>Quotas</h1>
    <${ErrorBox} error=${error} />
    <div class="scroll">
      <table>
        <thead>
          <tr>
            <th scope="col">Quota</th>
            <th scope="col">Used</th>
            <th scope="col">Limit</th>
          </tr>
        </thead>
        <tbody>
          ${(value?.quotas || []).map(
            (q) =>
              html`<tr key=${q.name}>
                <td>${idOf(q.name)}</td>
                <td class="number">${number(q.usage)}</td>
                <td class="number">${q.value ? number(q.value) : 'none'}</td>
              </tr>`,
          )}
        </tbody>
      </table>
    </div>`
}

// columnsOf returns the fields of usage rows that have values, in a fixed order.
function columnsOf(rows) {
  const first = ['time', 'startTime', 'account', 'model', 'deployment', 'key']
  const all = [...new Set(rows.flatMap(Object.keys))]
  return [...first.filter((f) => all.includes(f)), ...all.filter((f) => !first.includes(f)).sort()]
}

export function Usage() {
  const [filter, setFilter] = useParameter('filter')
  const pages = usePages(filter)
  const path = can('operate') ? '/v1/usage' : at('usage')
  const { value, error } = useLoaded(
    (signal) => get(path + query({ filter, pageSize: 50, pageToken: pages.token }), { signal }),
    [filter, pages.token],
  )
  const rows = value?.usage || []
  const columns = columnsOf(rows)
  return html`<h1>Usage</h1>
    <${FilterForm} filter=${filter} setFilter=${setFilter} hint='model = "NAME"' />
    <${ErrorBox} error=${error} />
    <div class="scroll">
      <table>
        <thead>
          <tr>
            ${columns.map((c) => html`<th scope="col">${c}</th>`)}
          </tr>
        </thead>
        <tbody>
          ${rows.map(
            (r) =>
              html`<tr>
                ${columns.map((c) => html`<td>${typeof r[c] === 'object' && r[c] ? JSON.stringify(r[c]) : r[c]}</td>`)}
              </tr>`,
          )}
        </tbody>
      </table>
    </div>
    ${value && !rows.length && html`<p class="dim">No usage is rolled up yet:
      usage appears after the end of each hour.</p>`}
    <${Pager} pages=${pages} page=${value} />`
}
