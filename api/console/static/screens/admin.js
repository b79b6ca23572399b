// API keys, secrets, quotas and usage of the account.
import { html, useState } from '/console/vendor/htm-preact.js'
import { all, at, can, get, jobKinds, patch, post, query, session, textAt } from '/console/client.js'
import { Action, Choice, Delete, ErrorBox, Facts, Field, FilterForm, Pager } from '/console/ui.js'
import { Pending, State, Table, Time, idOf, mib, number, useLoaded } from '/console/ui.js'
import { usePages, useParameter } from '/console/ui.js'
import { List, createdColumn } from '/console/list.js'
import { eventsAfter } from '/console/screens/history.js'
import { quantile, readMetrics, valueOf } from '/console/screens/load.js'

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
        createdColumn,
        {
          title: '',
          show: (k) => html`<${Delete} name=${k.name} what="key" />`,
        },
      ]}
    />`
}

// Secret edits the value of a secret, which is not shown.
function EditSecret({ secret }) {
  const [value, setValue] = useState(null)
  if (value === null) return html`<button onClick=${() => setValue('')}>Replace the value</button>`
  return html`<span class="controls">
    <input type="password" aria-label="New value" autocomplete="off" value=${value}
      onInput=${(e) => setValue(e.target.value)} />
    <${Action}
      run=${() => patch(`${at(secret.name)}?updateMask=value`, { value })}
      done=${() => setValue(null)}
      >Save<//
    ><button onClick=${() => setValue(null)}>Cancel</button></span
  >`
}

export function Secrets() {
  const empty = { id: '', variable: '', value: '' }
  const [s, setS] = useState(empty)
  const set = (name) => (to) => setS({ ...s, [name]: to })
  const create = () =>
    post(at('secrets'), { name: `accounts/${session.account}/secrets/${s.id}`, keyName: s.variable, value: s.value })
  return html`<h1>Secrets</h1>
    <p class="dim">Evaluators get the values in environment variables. No value is shown again.</p>
    <div class="controls">
      <${Field} label="ID" value=${s.id} set=${set('id')} />
      <${Field} label="Variable" value=${s.variable} set=${set('variable')} placeholder="such as API_TOKEN" />
      <${Field} label="Value" type="password" autocomplete="off" value=${s.value} set=${set('value')} />
      <${Action} primary run=${create} done=${() => setS(empty)}>Create a secret<//>
    </div>
    <${List}
      path="secrets"
      items="secrets"
      initialOrder="name"
      hint="keyName = API_TOKEN"
      empty="There are no secrets."
      columns=${[
        { title: 'Secret', show: (k) => idOf(k.name), order: 'name' },
        { title: 'Variable', show: (k) => html`<code>${k.keyName}</code>`, order: 'keyName' },
        { title: 'Value', show: (k) => html`<${EditSecret} secret=${k} />` },
        {
          title: '',
          show: (k) => html`<${Delete} name=${k.name} what="secret" />`,
        },
      ]}
    />`
}

// Limit edits a quota. Only the operator sets quotas.
function Limit({ quota: q }) {
  const [value, setValue] = useState(q.maxValue ?? '')
  const save = (maxValue) => () => patch(`${at(q.name)}?updateMask=maxValue`, maxValue === '' ? {} : { maxValue })
  return html`<span class="controls">
    <input type="number" min="0" aria-label=${`Limit of ${idOf(q.name)}`} value=${value}
      onInput=${(e) => setValue(e.target.value)} />
    <${Action} run=${save(value)}>Set<//>
    ${q.maxValue !== undefined && html`<${Action} run=${save('')} done=${() => setValue('')}>Remove<//>`}
  </span>`
}

export function Quotas() {
  const { value, error } = useLoaded(
    (signal) => get(at('quotas') + query({ pageSize: 200 }), { signal }),
    [],
    (e) => /\/(quotas|deployments|datasets|models)\/|Jobs\//.test(e.subject),
    3000,
  )
  const edit = can('operate')
  return html`<h1>Quotas</h1>
    <${ErrorBox} error=${error} />
    ${
      value &&
      html`<${Table}
        head=${['Quota', 'Used', 'Limit', ...(edit ? ['Set the limit'] : [])]}
        rows=${value.quotas.map((q) => [
          idOf(q.name),
          number(q.usage),
          q.value === undefined ? 'none' : number(q.value),
          ...(edit ? [html`<${Limit} key=${q.maxValue} quota=${q} />`] : []),
        ])}
      />`
    }`
}

// columnsOf returns the fields of usage rows that have values, in a fixed order.
function columnsOf(rows) {
  const first = ['startTime', 'endTime', 'account', 'model', 'deployment', 'apiKey', 'job', 'acceleratorType']
  const all = [...new Set(rows.flatMap(Object.keys))]
  return [...first.filter((f) => all.includes(f)), ...all.filter((f) => !first.includes(f)).sort()]
}

const groups = [
  'day',
  'hour',
  'day,model',
  'day,deployment',
  'day,apiKey',
  'day,job',
  'day,acceleratorType',
  'day,account',
]

export function Usage() {
  const [filter, setFilter] = useParameter('filter')
  const [group, setGroup] = useParameter('by', 'day')
  const [of, setOf] = useParameter('of', 'all')
  const pages = usePages(`${filter}\n${group}\n${of}`)
  const path = can('operate') && of === 'all' ? '/v1/usage' : at('usage')
  const { value, error } = useLoaded(
    (signal) => get(path + query({ filter, groupBy: group, pageSize: 50, pageToken: pages.token }), { signal }),
    [path, filter, group, pages.token],
  )
  const rows = value?.usage || []
  const columns = columnsOf(rows)
  const text = (v) => (typeof v === 'object' && v ? JSON.stringify(v) : typeof v === 'boolean' ? String(v) : v)
  return html`<h1>Usage</h1>
    <div class="controls">
      <${Choice} label="Group by" value=${group} set=${setGroup} options=${groups} />
      ${
        can('operate') &&
        html`<${Choice} label="Accounts" value=${of} set=${setOf} options=${['all', session.account]} />`
      }
    </div>
    <${FilterForm} filter=${filter} setFilter=${setFilter} hint='model = "NAME"' fields=${columns} />
    <${ErrorBox} error=${error} />
    ${
      value &&
      html`<${Table}
        head=${columns}
        empty="No usage in this month."
        rows=${rows.map((r) => columns.map((c) => text(r[c])))}
      />`
    }
    <${Pager} pages=${pages} page=${value} />`
}

// cells returns a cell for each device of a node: what runs on it, or null when it is free.
function cells(node) {
  const devices = Object.entries(node.capacity?.accelerators || {}).flatMap(([type, n]) =>
    Array(Number(n)).fill(type),
  )
  const taken = (node.allocations || []).flatMap((a) =>
    Object.entries(a.takes?.accelerators || {}).flatMap(([type, n]) => Array(Number(n)).fill({ type, for: a.for })),
  )
  return devices.map((type) => {
    const i = taken.findIndex((t) => t.type === type)
    return { type, for: i < 0 ? null : taken.splice(i, 1)[0].for }
  })
}

const share = (used = 0, all = 0) => (all ? Math.round((100 * used) / all) : 0)

function Meter({ title, used, all, show }) {
  return html`<div class="meter">
    <span>${title}</span><meter min="0" max="100" high="90" value=${share(used, all)} aria-label=${title}></meter>
    <span>${show(used || 0)} of ${show(all || 0)}</span>
  </div>`
}

function Node({ node: n }) {
  const cordoned = n.scheduling && n.scheduling !== 'SCHEDULABLE'
  const all = cells(n)
  return html`<article class="node">
    <h2>${idOf(n.name)}</h2>
    <${State} of=${n.state} /> ${cordoned && html`<${State} of=${n.scheduling} />`}
    <small class="dim">seen <${Time} of=${n.seenTime} /></small>
    <${Meter} title="CPU" used=${n.used?.cpuMilli} all=${n.capacity?.cpuMilli} show=${(v) => `${v / 1000}`} />
    <${Meter} title="Memory" used=${n.used?.memoryMib} all=${n.capacity?.memoryMib} show=${mib} />
    ${
      all.length > 0 &&
      html`<div class="devices" role="list" aria-label="Devices">
        ${all.map(
          (c) =>
            html`<span
              role="listitem"
              class=${c.for ? 'device taken' : 'device'}
              title=${`${c.type}: ${c.for || 'free'}`}
              >${c.for ? idOf(c.for) : 'free'}</span
            >`,
        )}
      </div>`
    }
    <ul class="allocations">
      ${(n.allocations || []).map((a) => html`<li>${a.for?.split('/').slice(1).join('/')}</li>`)}
    </ul>
    ${n.status?.message && html`<p>${n.status.message}</p>`}
    ${
      cordoned
        ? html`<${Action} run=${() => post(`${at(n.name)}:uncordon`)}>Uncordon<//>`
        : html`<${Action} run=${() => post(`${at(n.name)}:cordon`)}>Cordon<//
            ><${Action} run=${() => post(`${at(n.name)}:drain`)} confirm="Move all work away?">Drain<//>`
    }
  </article>`
}

// queueOf returns the jobs of all accounts that wait, in the order in which they are queued.
async function queueOf(metrics, signal) {
  const accounts = metrics
    .filter((m) => m.name === 'anneal_account_jobs' && m.labels.state === 'JOB_STATE_PENDING' && m.value > 0)
    .map((m) => m.labels.account)
  const lists = accounts.flatMap((account) =>
    jobKinds.map((k) =>
      all(
        at(`accounts/${account}/${k.collection}`),
        k.collection,
        { filter: 'state = JOB_STATE_PENDING' },
        signal,
        400,
      ),
    ),
  )
  const place = (j) => j.queue?.position || Infinity
  return (await Promise.all(lists)).flat().sort((a, b) => place(a) - place(b))
}

function Queue({ jobs }) {
  return html`<h2>Queue</h2>
    <${Table}
      label="Queue"
      head=${['Job', 'Account', 'Place', 'Waits for', 'Since', 'Starts between']}
      empty="No job waits."
      rows=${jobs.map((j) => {
        const { position, length, waitingFor, since, estimatedStartTime: e } = j.queue || {}
        return [
          j.name.split('/').slice(2).join('/'),
          j.name.split('/')[1],
          position ? `${position} of ${length}` : '–',
          waitingFor,
          html`<${Time} of=${since} />`,
          e ? html`<${Time} of=${e.earliest} /> and <${Time} of=${e.latest} />` : 'no estimate yet',
        ]
      })}
    />`
}

// newest returns the newest events up to a position, newest first.
async function newest(position, signal) {
  const found = []
  if (!position) return found
  for await (const e of eventsAfter('/v1/events', position - 200, signal)) {
    found.unshift(e)
    if (Number(e.position) >= position) return found
  }
  return found
}

// ControlPlane shows what this server reports about itself and the log, and which control planes have decided recent
// events.
function ControlPlane({ metrics, checkpoint, rebuilds, backups, recent }) {
  const m = (name, labels) => valueOf(metrics, `anneal_${name}`, labels)
  const free = m('disk_free_bytes')
  const append = (q) => {
    const buckets = metrics
      .filter((x) => x.name === 'anneal_log_append_seconds_bucket' && x.labels.result === 'appended')
      .map((x) => [Number(x.labels.le.replace('+Inf', 'Infinity')), x.value])
    return `${(1000 * quantile(q, buckets)).toFixed(1)} ms`
  }
  const planes = new Map()
  for (const e of recent) if (e.controlplane && !planes.has(e.controlplane)) planes.set(e.controlplane, e)
  const last = rebuilds[0]
  return html`<h2>Control plane and log</h2>
    <${Facts}
      of=${[
        ['Position', number(m('world_position'))],
        ['Lag of this control plane', `${number(m('world_lag_events'))} events`],
        ['Connected to NATS', m('nats_connected') ? 'yes' : 'no'],
        [
          'Durable appends',
          `${number(m('log_append_seconds_count', { result: 'appended' }))}, half within ${append(0.5)}, ` +
            `99 % within ${append(0.99)}`,
        ],
        ['Free on the disk', free >= 0 ? mib(Math.round(free / 2 ** 20)) : 'unknown'],
        ['Usage records not in the log yet', number(m('usage_records_waiting'))],
        ['Subscriptions are behind by', `${number(m('subscription_lag_seconds'))} s`],
        ['Signed checkpoint', checkpoint && `${number(checkpoint[1])} events, root ${checkpoint[2]}`],
        [
          'Last rebuild from the log',
          last
            ? html`<${State} of=${last.state} /> ${' '}
                ${`${number(last.logEvents)} events, ${number(last.differenceCount)} differences, `}
                <${Time} of=${last.startTime} />`
            : "none: start one with 'anneal world rebuild'",
        ],
      ]}
    />
    <${Table}
      label="Control planes"
      head=${['Control plane', 'Last event', 'At', 'Events behind the log']}
      empty="No recent event."
      rows=${[...planes].map(([name, e]) => [
        name,
        `${e.position} ${e.type}`,
        html`<${Time} of=${e.time} />`,
        metrics.length ? (planes.size === 1 ? m('world_lag_events') : 'see its own /metrics') : '',
      ])}
    />
    <h2>Backups</h2>
    <${Table}
      label="Backups"
      head=${['Target', 'Age of the last one', 'Events that it lacks']}
      empty="There is no backup target: see 'anneal backup create'."
      rows=${backups.map((b) => [
        b.target,
        `${number(m('backup_age_seconds', { target: b.target }))} s`,
        number(m('backup_missing_events', { target: b.target })),
      ])}
    />`
}

// bindAlias moves an alias from a deployment to another one; either may be empty. If the second request fails, the
// first deployment gets the alias back.
async function bindAlias(alias, from, to) {
  const set = async (name, bound) => {
    const others = ((await get(at(name))).aliases || []).filter((a) => a !== alias)
    await patch(`${at(name)}?updateMask=aliases`, { aliases: bound ? [...others, alias] : others })
  }
  if (from) await set(from, false)
  try {
    if (to) await set(to, true)
  } catch (e) {
    if (from) await set(from, true)
    throw e
  }
}

function Alias({ alias, deployment, done }) {
  const [to, setTo] = useState(deployment)
  return html`<span class="controls">
    <input aria-label=${`Deployment of ${alias}`} value=${to} onInput=${(e) => setTo(e.target.value)} />
    <${Action} run=${() => to !== deployment && bindAlias(alias, deployment, to)} done=${done}>Move<//>
    <${Action} run=${() => bindAlias(alias, deployment)} done=${done} confirm="Delete the alias?">Delete<//>
  </span>`
}

// Aliases shows the names under which the keys of all accounts can use deployments. The list of models has them.
function Aliases() {
  const { value, error, reload } = useLoaded(
    (signal) => get('/inference/v1/models', { signal }),
    [],
    (e) => e.subject.includes('/deployments/'),
    3000,
  )
  const [alias, setAlias] = useState('')
  const [to, setTo] = useState('')
  const create = async () => {
    if (!alias || !to) throw new Error('enter the alias and its deployment')
    await bindAlias(alias, '', to)
  }
  const created = () => {
    setAlias('')
    setTo('')
    reload()
  }
  const list = (value?.data || []).filter((m) => m.deployment && m.owned_by === 'system' && !m.id.includes('/'))
  return html`<h2>Aliases</h2>
    <${ErrorBox} error=${error} />
    ${
      value &&
      html`<${Table}
        label="Aliases"
        head=${['Alias', 'Deployment', 'Change']}
        empty="There are no aliases."
        rows=${list.map((m) => [
          m.id,
          m.deployment,
          html`<${Alias} key=${m.deployment} alias=${m.id} deployment=${m.deployment} done=${reload} />`,
        ])}
      />`
    }
    <div class="controls">
      <${Field} label="Alias" value=${alias} set=${setAlias} placeholder="such as smart" />
      <${Field} label="Deployment" value=${to} set=${setTo} placeholder="accounts/ACCOUNT/deployments/ID" />
      <${Action} primary run=${create} done=${created}>Create an alias<//>
    </div>`
}

const accountColumns = [
  { title: 'Account', show: (a) => idOf(a.name), order: 'name' },
  {
    title: 'State',
    show: (a) => html`<${State} of=${a.suspendState === 'UNSUSPENDED' ? a.state : a.suspendState} />`,
  },
  { title: 'Name', show: (a) => a.displayName },
  createdColumn,
]

export function Cluster() {
  const { value, error } = useLoaded(
    async (signal) => {
      const read = (path, fallback) => get(path, { signal }).catch(() => fallback)
      const [nodes, metrics, checkpoint, rebuilds, backups] = await Promise.all([
        all(at('accounts/system/nodes'), 'nodes', { orderBy: 'name' }, signal),
        readMetrics(signal),
        textAt('/log/checkpoint', signal).then(
          (t) => t.split('\n'),
          () => null,
        ),
        read('/v1/rebuilds', {}),
        read('/v1/backups', {}),
      ])
      return {
        nodes,
        metrics,
        checkpoint,
        rebuilds: rebuilds.rebuilds || [],
        backups: backups.backups || [],
        recent: await newest(valueOf(metrics, 'anneal_world_position'), signal),
        jobs: await queueOf(metrics, signal),
      }
    },
    [],
    () => true,
    3000,
  )
  if (!value) return html`<${Pending} title="Cluster" error=${error} />`
  return html`<h1>Cluster</h1>
    <${ErrorBox} error=${error} />
    ${!value.nodes.length && html`<p class="dim">No node has joined. Create a token with: anneal node token</p>`}
    <div class="nodes">${value.nodes.map((n) => html`<${Node} key=${n.name} node=${n} />`)}</div>
    <${Queue} jobs=${value.jobs} />
    <${ControlPlane} ...${value} />
    <${Aliases} />
    <h2>Accounts</h2>
    <${List}
      path="/v1/accounts"
      items="accounts"
      hint="state = READY"
      empty="There are no accounts."
      columns=${accountColumns}
    />`
}
