// Metrics in the text format of Prometheus, and samples of them.
import { html, useEffect, useRef, useState } from '/console/vendor/htm-preact.js'
import { at, can, get, patch, query, textAt } from '/console/client.js'
import { Action, Choice, ErrorBox, Field, Table, useLoaded } from '/console/ui.js'
import { stateAt } from '/console/screens/history.js'

// parsed returns the metrics of a text: {name, labels, value}. Those of Go and of the process are left out.
export function parsed(text) {
  const all = []
  for (const line of text.split('\n')) {
    const m = /^(anneal_\w+)(?:{(.*)})? (\S+)/.exec(line)
    if (!m) continue
    const labels = Object.fromEntries(
      [...(m[2] || '').matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map((l) => [l[1], l[2]]),
    )
    all.push({ name: m[1], labels, value: Number(m[3]) })
  }
  return all
}

// readMetrics reads the metrics that the key may read.
export const readMetrics = async (signal) =>
  parsed(await textAt(can('operate') ? '/metrics/detailed' : '/metrics', signal))

// valueOf returns the value of a metric with labels; undefined if there is none.
export const valueOf = (metrics, name, labels = {}) =>
  metrics.find((m) => m.name === name && Object.entries(labels).every(([k, v]) => m.labels[k] === v))?.value

// quantile returns a quantile of a histogram, whose buckets are cumulative counts: [[upper bound, count]]. It
// interpolates within a bucket, as Prometheus does; null without observations.
export function quantile(q, buckets) {
  const total = buckets.at(-1)?.[1]
  if (!total) return null
  let [low, before] = [0, 0]
  for (const [high, count] of buckets) {
    if (count >= q * total)
      return high === Infinity ? low : low + ((high - low) * (q * total - before)) / (count - before)
    ;[low, before] = [high, count]
  }
  return low
}

const every = 5000 // milliseconds between samples
const maxSamples = 720 // samples of a deployment: those of an hour
const maxFollowed = 8 // deployments that the tab samples
const recentSamples = 12 // samples over which latencies are computed: a minute
const firstToken = 'anneal_completion_first_token_seconds_bucket'

// Samples of the deployments whose screens were opened, by name: {list, listeners, timer}.
const followed = new Map()

// rate returns the increase per second of a counter between two samples.
const rate = (from, to, field) =>
  from ? Math.max(0, (to.totals[field] - from.totals[field]) / (to.time - from.time)) : null

let refused = false // the server may keep its metrics to the operator

// sample reads one sample of a deployment. Requests in progress are known to the operator only. For others, the
// rates are the differences of the usage between samples.
async function sample(name, since, before) {
  const [, account, , deployment] = name.split('/')
  const d = await get(at(name))
  const metrics = refused ? [] : await readMetrics().catch(() => [])
  refused ||= !metrics.length
  const s = {
    time: Date.now() / 1000,
    desired: d.desiredReplicaCount,
    ready: d.replicaStats.readyReplicaCount,
    latency: metrics
      .filter((m) => m.name === firstToken)
      .map((m) => [Number(m.labels.le.replace('+Inf', 'Infinity')), m.value]),
  }
  if (can('operate')) {
    const of = (metric, kind) =>
      valueOf(metrics, `anneal_deployment_${metric}`, { account, deployment, ...kind }) ?? 0
    s.requests = of('requests_per_second')
    s.prompt = of('tokens_per_second', { kind: 'prompt' })
    s.completion = of('tokens_per_second', { kind: 'completion' })
    s.inProgress = of('requests_in_flight')
    s.capacity = of('slots') * s.ready
    return s
  }
  const filter = `deployment = "${name}"`
  const { usage = [] } = await get(at('usage') + query({ groupBy: 'deployment', startTime: since, filter }))
  s.totals = { requests: 0, promptTokens: 0, completionTokens: 0 }
  for (const row of usage) for (const k in s.totals) s.totals[k] += Number(row[k])
  s.requests = rate(before, s, 'requests')
  s.prompt = rate(before, s, 'promptTokens')
  s.completion = rate(before, s, 'completionTokens')
  return s
}

// latencyOf returns a quantile of the times to the first token in the minute before a sample.
function latencyOf(q, list, i) {
  const from = list[Math.max(0, i - recentSamples)].latency
  return quantile(
    q,
    list[i].latency.map(([le, n], k) => [le, n - (from[k]?.[1] ?? 0)]),
  )
}

// seriesOf returns the charts of the samples of a deployment: {title: lines}.
export function seriesOf(list) {
  const line = (label, of) => ({ label, points: list.map((s, i) => [s.time, of(s, i)]).filter(([, v]) => v != null) })
  return {
    'Requests per second': [line('requests', (s) => s.requests)],
    'Tokens per second': [line('prompt', (s) => s.prompt), line('completion', (s) => s.completion)],
    ...(can('operate') && {
      'Requests in progress': [line('running and waiting', (s) => s.inProgress), line('capacity', (s) => s.capacity)],
    }),
    'Time to the first token (s), all models of this server': [0.5, 0.95, 0.99].map((q) =>
      line(`${100 * q} %`, (_, i) => latencyOf(q, list, i)),
    ),
  }
}

// follow samples a deployment until the tab is closed, and calls listener after each sample. It returns a
// function that ends the calls.
export function follow(name, listener) {
  let one = followed.get(name)
  if (!one) {
    one = { list: [], listeners: new Set() }
    followed.set(name, one)
    if (followed.size > maxFollowed) {
      const [oldest, { timer }] = followed.entries().next().value
      clearTimeout(timer)
      followed.delete(oldest)
    }
    const since = new Date().toISOString()
    const next = async () => {
      try {
        one.list = [...one.list, await sample(name, since, one.list.at(-1))].slice(-maxSamples)
      } catch {
        // the next sample may succeed
      }
      for (const tell of one.listeners) tell(one.list)
      if (followed.get(name) === one) one.timer = setTimeout(next, every)
    }
    next()
  }
  one.listeners.add(listener)
  listener(one.list)
  return () => one.listeners.delete(listener)
}

// forget ends all sampling.
export function forget() {
  for (const { timer } of followed.values()) clearTimeout(timer)
  followed.clear()
  refused = false
}

// Load of a deployment over time, and the settings that scale it.

const hour = 3600e3
const points = 13 // earlier states of a deployment that are read

// replicasBefore returns the replicas in the last hour, [[time, desired, ready]], from states of the log.
async function replicasBefore({ name, createTime }, signal) {
  const found = []
  const now = Date.now()
  const start = Math.max(now - hour, Date.parse(createTime) + 1)
  for (let i = 0; i < points - 1; i++) {
    const at = new Date(start + (i * (now - start)) / points).toISOString()
    const d = await stateAt(name, at, signal)
    if (d) found.push([Date.parse(at) / 1000, d.desiredReplicaCount, d.replicaStats.readyReplicaCount])
  }
  return found
}

// usageByHour returns the usage of a deployment since a day.
async function usageByHour(name, signal) {
  const startTime = new Date(Date.now() - 24 * hour).toISOString()
  const filter = `deployment = "${name}"`
  return (
    await get(at('usage') + query({ groupBy: 'hour,deployment', startTime, filter, pageSize: 200 }), { signal })
  ).usage
}

// Load shows charts of samples since the deployment was opened in this tab, and of earlier states and usage.
export function Load({ deployment: d }) {
  const { name } = d
  const [samples, setSamples] = useState([])
  useEffect(() => follow(name, setSamples), [name])
  const before = useLoaded((signal) => replicasBefore(d, signal), [name])
  const usage = useLoaded((signal) => usageByHour(name, signal), [name, Math.floor(samples.length / recentSamples)])
  const replicas = (i, field) => [
    ...(before.value || []).map((r) => [r[0], r[i]]).filter(([t]) => t < (samples[0]?.time ?? Infinity)),
    ...samples.map((s) => [s.time, s[field]]),
  ]
  const hours = (label, field) => ({
    label,
    points: (usage.value || []).map((u) => [Date.parse(u.startTime) / 1000, Number(u[field])]),
  })
  return html`<${ErrorBox} error=${before.error || usage.error} />
    <p class="dim">
      Sampled every 5 seconds since this deployment was opened in this tab; replicas of the last hour and usage of the
      last day are from the log.${!can('operate') && ' Requests in progress are shown to the operator.'}
    </p>
    <div class="charts">
      ${Object.entries(seriesOf(samples)).map(
        ([title, lines]) => html`<${Chart} key=${title} title=${title} lines=${lines} x="time" sync="load" />`,
      )}
      <${Chart}
        title="Replicas"
        x="time"
        sync="load"
        lines=${[
          { label: 'desired', points: replicas(1, 'desired') },
          { label: 'ready', points: replicas(2, 'ready') },
        ]}
      />
      <${Chart} title="Requests per hour" x="time" sync="usage" lines=${[hours('requests', 'requests')]} />
      <${Chart}
        title="Tokens per hour"
        x="time"
        sync="usage"
        lines=${[hours('prompt', 'promptTokens'), hours('completion', 'completionTokens')]}
      />
    </div>`
}

const targets = [
  'default',
  'tokens_generated_per_second',
  'prompt_tokens_per_second',
  'requests_per_second',
  'concurrent_requests',
]
const windows = {
  scaleUpWindow: 'Scale up after',
  scaleDownWindow: 'Scale down after',
  scaleToZeroWindow: 'Scale to zero after',
}

// Scaling edits how a deployment is scaled.
export function Scaling({ deployment: d, edit }) {
  const policy = d.autoscalingPolicy || {}
  const [count, setCount] = useState(String(d.desiredReplicaCount ?? 1))
  const [s, setS] = useState({ min: String(d.minReplicaCount ?? 0), max: String(d.maxReplicaCount ?? 1), ...policy })
  const [target, setTarget] = useState(Object.keys(policy.loadTargets || {})[0] || 'default')
  const [value, setValue] = useState(String(Object.values(policy.loadTargets || {})[0] ?? ''))
  const set = (name) => (to) => setS({ ...s, [name]: to })
  const save = () => {
    const given = Object.keys(windows).filter((k) => s[k])
    const autoscalingPolicy = Object.fromEntries(given.map((k) => [k, s[k]]))
    if (value) autoscalingPolicy.loadTargets = { [target]: Number(value) }
    return patch(at(d.name), {
      minReplicaCount: Number(s.min),
      maxReplicaCount: Number(s.max),
      ...(Object.keys(autoscalingPolicy).length || d.autoscalingPolicy ? { autoscalingPolicy } : {}),
    })
  }
  const off = !edit
  return html`<div class="controls">
      <${Field} label="Replicas" type="number" min="0" max="10000" value=${count} set=${setCount} disabled=${off} />
      ${edit && html`<${Action} run=${() => patch(`${at(d.name)}:scale`, { replicaCount: Number(count) })}>Scale<//>`}
    </div>
    <h2>Autoscaling</h2>
    <div class="controls">
      <${Field} label="Replicas at least" type="number" min="0" value=${s.min} set=${set('min')} disabled=${off} />
      <${Field} label="Replicas at most" type="number" min="1" value=${s.max} set=${set('max')} disabled=${off} />
      ${Object.entries(windows).map(
        ([k, title]) =>
          html`<${Field}
            key=${k}
            label=${title}
            value=${s[k] || ''}
            set=${set(k)}
            placeholder="such as 120s"
            disabled=${off}
          />`,
      )}
      <${Choice} label="Load of a replica" value=${target} set=${setTarget} options=${targets} />
      <${Field} label="Target" type="number" min="0" step="any" value=${value} set=${setValue} placeholder="default" />
      ${edit && html`<${Action} primary run=${save}>Save<//>`}
    </div>`
}

// Charts of metrics. Each chart has a table with the same numbers.

const colors = ['#b4451f', '#1f6fb4', '#2f8f4e', '#8a4fbf', '#a67c00', '#c2337a', '#00818a', '#6b6b6b']

// smooth returns the exponential moving average of values, which may have gaps. weight is from 0 to below 1.
export function smooth(values, weight) {
  let last = null
  return values.map((v) => {
    if (v == null || !weight) return v
    last = last == null ? v : weight * last + (1 - weight) * v
    return last
  })
}

// aligned returns uPlot's data of lines, each {label, points: [[x, y]]}: the union of their x, and a list
// of y for each line.
export function aligned(lines) {
  const xs = [...new Set(lines.flatMap((l) => l.points.map(([x]) => x)))].sort((a, b) => a - b)
  return [
    xs,
    ...lines.map((l) => {
      const by = new Map(l.points)
      return xs.map((x) => by.get(x) ?? null)
    }),
  ]
}

// Chart draws lines, each {label, points: [[x, y]]}.
export function Chart({ title, lines, x = 'step', weight = 0, log = false, sync = 'metrics' }) {
  const place = useRef()
  const [table, setTable] = useState(false)
  const data = aligned(lines)
  const shown = [data[0], ...data.slice(1).map((v) => smooth(v, weight))]
  const none = !data[0].length
  useEffect(() => {
    if (none) return
    const css = getComputedStyle(document.documentElement)
    const axis = {
      stroke: css.getPropertyValue('--text'),
      grid: { stroke: css.getPropertyValue('--line'), width: 1 },
    }
    const chart = new uPlot(
      {
        width: place.current.clientWidth || 320,
        height: 220,
        cursor: { sync: { key: sync } },
        scales: {
          x: { time: x === 'time', range: (_, a, b) => (data[0].length < 2 ? [a - 1, a + 1] : [a, b]) },
          y: { distr: log ? 3 : 1 },
        },
        axes: [axis, { ...axis, size: 60 }],
        series: [
          { label: x },
          ...lines.map((l, i) => ({
            label: l.label,
            stroke: colors[i % colors.length],
            width: 1.5,
            spanGaps: true,
            points: { show: l.points.length < 30 },
          })),
        ],
      },
      shown,
      place.current,
    )
    const resize = new ResizeObserver(() => chart.setSize({ width: place.current.clientWidth, height: 220 }))
    resize.observe(place.current)
    return () => {
      resize.disconnect()
      chart.destroy()
    }
  }, [JSON.stringify(data), weight, log, x])
  const rows = table
    ? data[0].map((at, i) => [
        x === 'time' ? new Date(at * 1000).toISOString() : at,
        ...data.slice(1).map((v) => v[i] ?? ''),
      ])
    : []
  return html`<figure class="chart">
    <figcaption>${title}</figcaption>
    ${none && html`<p class="dim">There are no values yet.</p>`}
    <div ref=${place}></div>
    <details onToggle=${(e) => setTable(e.target.open)}>
      <summary>Table</summary>
      <${Table} head=${[x, ...lines.map((l) => l.label)]} rows=${rows} />
    </details>
  </figure>`
}

// csvOf returns rows of metrics as CSV with a header.
export function csvOf(rows) {
  const names = [...new Set(rows.flatMap(Object.keys))]
  const cell = (v) => (v == null ? '' : /[",\n]/.test(v) ? `"${String(v).replaceAll('"', '""')}"` : String(v))
  return [names.join(','), ...rows.map((r) => names.map((n) => cell(r[n])).join(','))].join('\n') + '\n'
}
