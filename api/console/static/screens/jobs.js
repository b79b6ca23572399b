import { html, useEffect, useMemo, useState } from '/console/vendor/htm-preact.js'
import { at, baseOf, can, fileOf, get, jobKinds, kindOf, lines, live, post, query } from '/console/client.js'
import { Action, Delete, ErrorBox, Facts, Json, Pager, Pending, State, Table } from '/console/ui.js'
import { Tabs, Time, idOf, number, useLoaded, useOne } from '/console/ui.js'
import { usePages, useParameter } from '/console/ui.js'
import { List, createdColumn, stateColumn } from '/console/list.js'
import { Progress } from '/console/screens/home.js'
import { Chart, csvOf } from '/console/screens/load.js'
import { History } from '/console/screens/history.js'

export function Jobs() {
  const [short, setShort] = useParameter('kind', 'sft')
  const kind = kindOf(short) || jobKinds[0]
  return html`<div class="title">
      <h1>Jobs</h1>
      ${can('write') && html`<a class="button primary" href="#/new-job">New job</a>`}
    </div>
    <${Tabs}
      of=${Object.fromEntries(jobKinds.map((k) => [k.short, k.title]))}
      tab=${kind.short}
      setTab=${setShort}
      label="Kinds of jobs"
    >
    <${List}
      key=${kind.short}
      path=${kind.collection}
      items=${kind.collection}
      hint="state = JOB_STATE_FAILED"
      link=${(j) => `#/jobs/${kind.short}/${idOf(j.name)}`}
      empty="There are no jobs of this kind."
      columns=${[
        { title: 'Job', show: (j) => idOf(j.name), order: 'name' },
        stateColumn,
        { title: 'Progress', show: (j) => html`<${Progress} of=${j.jobProgress} />` },
        { title: 'Base model', show: (j) => idOf(baseOf(j)) },
        {
          title: 'Dataset',
          show: (j) => j.dataset && html`<a href=${`#/datasets/${idOf(j.dataset)}`}>${idOf(j.dataset)}</a>`,
        },
        createdColumn,
      ]}
    />
    <//>`
}

const poll = 2000 // milliseconds between reads of the metrics of a running job

// metricsOf returns the metrics of a job, an object for each step; none before the first step.
async function metricsOf(name, signal) {
  try {
    const { signedUrl } = await get(`${at(name)}:getMetricsFileEndpoint`, { signal })
    const response = await fileOf(signedUrl, signal)
    const rows = []
    if (response) for await (const line of lines(response)) if (line) rows.push(JSON.parse(line))
    return rows
  } catch (e) {
    if (e.status === 404 || e.status === 400) return []
    throw e
  }
}

// useMetrics reads the metrics of jobs, and reads them again while a job is live.
function useMetrics(names, running) {
  const [all, setAll] = useState({})
  const [error, setError] = useState(null)
  useEffect(() => {
    const abort = new AbortController()
    let timer
    const read = async () => {
      try {
        const read = await Promise.all(names.map((n) => metricsOf(n, abort.signal)))
        setAll(Object.fromEntries(names.map((n, i) => [n, read[i]])))
        setError(null)
      } catch (e) {
        if (abort.signal.aborted) return
        setError(e)
      }
      if (running) timer = setTimeout(read, poll)
    }
    read()
    return () => {
      abort.abort()
      clearTimeout(timer)
    }
  }, [names.join(), running])
  return [all, error]
}

const notPlotted = ['step', 'epoch', 'time', 'tokens']

// charts returns the lines of charts by metric: train/loss and eval/loss share the chart loss.
function charts(all, x) {
  const by = {}
  const several = Object.keys(all).length > 1
  for (const [name, rows] of Object.entries(all)) {
    for (const metric of new Set(rows.flatMap(Object.keys))) {
      if (notPlotted.includes(metric)) continue
      const chart = metric.split('/').pop()
      const points = rows
        .filter((r) => r[metric] != null && r[x] != null)
        .map((r) => [x === 'time' ? new Date(r.time) / 1000 : r[x], r[metric]])
      const group = metric.startsWith('reward/') ? 'reward' : chart
      ;(by[group] ||= []).push({ label: several ? `${idOf(name)} ${metric}` : metric, points })
    }
  }
  return by
}

function Curves({ name, running }) {
  const [others, setOthers] = useParameter('compare')
  const [x, setX] = useParameter('x', 'step')
  const [weight, setWeight] = useState(0)
  const [log, setLog] = useState(false)
  const [draft, setDraft] = useState(others)
  const collection = name.split('/')[2]
  const account = name.split('/')[1]
  const names = [
    name,
    ...others
      .split(',')
      .map((o) => o.trim())
      .filter(Boolean)
      .slice(0, 7)
      .map((o) => `accounts/${account}/${collection}/${o}`),
  ]
  const [all, error] = useMetrics(names, running)
  const groups = useMemo(() => charts(all, x), [all, x])
  const download = () => {
    const url = URL.createObjectURL(new Blob([csvOf(all[name] || [])], { type: 'text/csv' }))
    const link = Object.assign(document.createElement('a'), { href: url, download: `${idOf(name)}.csv` })
    link.click()
    URL.revokeObjectURL(url)
  }
  return html`<div class="controls">
      <label
        >By
        <select value=${x} onChange=${(e) => setX(e.target.value)}>
          <option value="step">step</option>
          <option value="tokens">tokens</option>
          <option value="time">time</option>
        </select></label
      >
      <label
        >Smoothing
        <input
          type="range"
          min="0"
          max="0.98"
          step="0.02"
          value=${weight}
          onInput=${(e) => setWeight(Number(e.target.value))}
      /></label>
      <label
        ><input type="checkbox" checked=${log} onChange=${(e) => setLog(e.target.checked)} /> Logarithmic</label
      >
      <form
        onSubmit=${(e) => {
          e.preventDefault()
          setOthers(draft)
        }}
      >
        <label
          >Compare with
          <input value=${draft} onInput=${(e) => setDraft(e.target.value)} placeholder="IDs, separated by commas"
        /></label>
      </form>
      <button onClick=${download}>CSV</button>
    </div>
    <${ErrorBox} error=${error} />
    ${!Object.keys(groups).length && html`<p class="dim">There are no metrics yet.</p>`}
    <div class="charts">
      ${Object.entries(groups).map(
        ([title, series]) =>
          html`<${Chart}
            key=${title}
            title=${title}
            lines=${series}
            x=${x}
            weight=${weight}
            log=${log && series.every((l) => l.points.every(([, y]) => y > 0))}
          />`,
      )}
    </div>`
}

function Checkpoints({ name }) {
  const { value, error, reload } = useLoaded(
    (signal) => get(`${at(name)}/checkpoints${query({ pageSize: 100 })}`, { signal }),
    [name],
    (e) => e.subject === name,
  )
  const rows = value?.checkpoints || []
  const [promoted, setPromoted] = useState('')
  const promote = (c) => post(`${at(c.name)}:promote`, { modelId: `${idOf(name)}-${c.step}` })
  return html`<${ErrorBox} error=${error} />${
      promoted &&
      html`<p role="status">
        Created the model <a href=${`#/new-deployment?model=${encodeURIComponent(promoted)}`}>${idOf(promoted)}</a>.
      </p>`
    }
    ${value && html`<${Table}
      head=${['Step', 'Saved', 'Metrics', '']}
      empty="No checkpoint is saved yet."
      rows=${rows.map((c) => [
        c.step,
        html`<${Time} of=${c.createTime} />`,
        Object.entries(c.metrics || {}).map(
          ([k, v]) => html`<span class="metric">${k} ${Number(v).toPrecision(4)}</span>`,
        ),
        can('write') &&
          html`<${Action}
            run=${() => promote(c)}
            done=${(m) => {
              setPromoted(m?.name || '')
              reload()
            }}
            >Promote to a model<//
          >`,
      ])}
    />`}`
}

// Rollouts shows the prompts, responses and scores of a reinforcement job.
function Rollouts({ name }) {
  const pages = usePages(name)
  const { value, error } = useLoaded(
    (signal) =>
      get(`${at(name)}/rollouts${query({ pageSize: 50, orderBy: 'step desc', pageToken: pages.token })}`, { signal }),
    [name, pages.token],
    (e) => e.subject === name,
  )
  const rows = value?.rollouts || []
  return html`<${ErrorBox} error=${error} />${rows.map(
      (r, i) =>
        html`<details key=${i} class="rollout">
          <summary>step ${r.step} · ${r.success === false ? 'no score' : `score ${r.score ?? '–'}`}</summary>
          <pre tabindex="0">${JSON.stringify(r, null, 2)}</pre>
        </details>`,
    )}
    ${value && !rows.length && html`<p class="dim">There are no rollouts yet.</p>`}
    <${Pager} pages=${pages} page=${value} previous="Newer" next="Older" />`
}

function JobLog({ name }) {
  const { value, error } = useLoaded(
    async (signal) => {
      const { signedUrl } = await get(`${at(name)}:getTrainerLogsEndpoint`, { signal })
      const response = await fileOf(signedUrl, signal)
      return response ? response.text() : ''
    },
    [name],
    (e) => e.subject === name,
  )
  return html`<${ErrorBox} error=${error} />
    <pre class="log" tabindex="0">${value || 'The log is empty.'}</pre>`
}

export function Job({ rest: [short, id] }) {
  const kind = kindOf(short)
  const [tab, setTab] = useParameter('tab', 'curves')
  const name = `${kind?.collection}/${id}`
  const { value: job, error } = useOne(name)
  if (!job)
    return html`<${Pending} title=${id} error=${error} />`
  const running = live.includes(job.state)
  const tabs = {
    curves: 'Curves',
    checkpoints: 'Checkpoints',
    ...(short === 'rft' ? { rollouts: 'Rollouts' } : {}),
    log: 'Log',
    settings: 'Settings',
    events: 'Events',
  }
  const output = job.outputModel || job.trainingConfig?.outputModel
  const model = output ? `accounts/${job.name.split('/')[1]}/models/${idOf(output)}` : ''
  return html`<div class="title">
      <h1>${id}</h1>
      <${State} of=${job.state} />
      ${can('write') && running && html`<${Action} run=${() => post(`${at(job.name)}:cancel`)}
        confirm="Cancel the job?">Cancel<//>`}
      ${
        can('write') &&
        ['JOB_STATE_FAILED', 'JOB_STATE_CANCELLED', 'JOB_STATE_PAUSED'].includes(job.state) &&
        html`<${Action} run=${() => post(`${at(job.name)}:resume`)}>Resume<//>`
      }
      ${can('write') && ['sft', 'dpo'].includes(short) && html`<a class="button"
        href=${`#/new-job?from=${encodeURIComponent(job.name)}`}>Clone</a>`}
      ${
        can('write') &&
        ['JOB_STATE_COMPLETED', 'JOB_STATE_EARLY_STOPPED'].includes(job.state) &&
        model &&
        html`<a class="button primary" href=${`#/new-deployment?model=${encodeURIComponent(model)}`}>Deploy</a>`
      }
      ${
        can('write') &&
        !running &&
        html`<${Delete} name=${job.name} what="job" to=${`#/jobs?kind=${short}`} />`
      }
    </div>
    <${ErrorBox} error=${error} />
    <${Facts}
      of=${[
        ['Kind', kind.title],
        ['Base model', baseOf(job)],
        ['Output model', model],
        ['Dataset', job.dataset && html`<a href=${`#/datasets/${idOf(job.dataset)}`}>${job.dataset}</a>`],
        ['Status', job.status?.message],
        [
          'Waits for',
          job.queue &&
            `${job.queue.waitingFor || ''}` +
            `${job.queue.position ? ` (place ${job.queue.position} of ${job.queue.length})` : ''}`,
        ],
        ['Progress', job.jobProgress?.steps && html`<${Progress} of=${job.jobProgress} />`],
        ['Tokens trained', job.jobProgress && number(job.jobProgress.trainedTokens)],
        ['Created', html`<${Time} of=${job.createTime} />`],
        ['Ended', job.completedTime && html`<${Time} of=${job.completedTime} />`],
      ]}
    />
    <${Tabs} of=${tabs} tab=${tab} setTab=${setTab} label="Details">
      ${tab === 'curves' && html`<${Curves} name=${job.name} running=${running} />`}
      ${tab === 'checkpoints' && html`<${Checkpoints} name=${job.name} />`}
      ${tab === 'rollouts' && html`<${Rollouts} name=${job.name} />`}
      ${tab === 'log' && html`<${JobLog} name=${job.name} />`} ${tab === 'settings' && html`<${Json} of=${job} />`}
      ${tab === 'events' && html`<${History} name=${job.name} />`}
    <//>`
}
