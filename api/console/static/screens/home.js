import { html } from '/console/vendor/htm-preact.js'
import { at, can, get, jobKinds, live, query } from '/console/client.js'
import { ErrorBox, Pending, State, Time, idOf, useLoaded } from '/console/ui.js'

const day = 86400e3
const long = 600e3 // a job that waits longer than this needs attention
const pause = 3000 // milliseconds between reads of one list

// usePage reads a list, and reads it again after events of its own kind only. A busy log must not make the page
// read all lists.
function usePage(name, filter, pageSize = 20) {
  const collection = idOf(name)
  const { value, error } = useLoaded(
    async (signal) =>
      filter ? get(at(name) + query({ filter: filter(), pageSize, orderBy: 'createTime desc' }), { signal }) : {},
    [name],
    (e) => e.subject.includes(`/${collection}/`),
    pause,
  )
  return { items: value && (value[collection] || []), error }
}

const since = () => new Date(Date.now() - day).toISOString()
const states = live.map((s) => `state = ${s}`).join(' OR ')
const liveOrFailed = () => `${states} OR (state = JOB_STATE_FAILED AND updateTime > "${since()}")`

// useAll reads what needs attention and what runs: {value, error}. value is undefined until all lists are read.
function useAll() {
  const jobs = jobKinds.map((k) => usePage(k.collection, liveOrFailed))
  const deployments = usePage('deployments', () => 'state != DELETED', 50)
  const datasets = usePage('datasets', () => `status.code != OK AND updateTime > "${since()}"`)
  const nodes = usePage('accounts/system/nodes', can('operate') && (() => 'state != READY'))
  const lists = [...jobs, deployments, datasets, nodes]
  return {
    error: lists.find((l) => l.error)?.error,
    value: lists.every((l) => l.items) && {
      jobs: jobs.flatMap((l, i) => l.items.map((job) => ({ ...job, kind: jobKinds[i] }))),
      deployments: deployments.items,
      datasets: datasets.items,
      nodes: nodes.items,
    },
  }
}

function attention({ jobs, deployments, datasets, nodes }) {
  const waiting = (j) => j.state === 'JOB_STATE_PENDING' && Date.now() - new Date(j.updateTime) > long
  return [
    ...jobs
      .filter((j) => j.state === 'JOB_STATE_FAILED' || waiting(j))
      .map((j) => ({
        name: j.name,
        state: j.state,
        link: `#/jobs/${j.kind.short}/${idOf(j.name)}`,
        why: j.status?.message,
        time: j.updateTime,
      })),
    ...deployments
      .filter((d) => d.state === 'FAILED' || d.status?.code !== 'OK')
      .map((d) => ({
        name: d.name,
        state: d.state,
        link: `#/deployments/${idOf(d.name)}`,
        why: d.status?.message,
        time: d.updateTime,
      })),
    ...datasets.map((d) => ({
      name: d.name,
      state: d.state,
      link: `#/datasets/${idOf(d.name)}`,
      why: d.status?.message,
      time: d.updateTime,
    })),
    ...nodes.map((n) => ({
      name: n.name,
      state: n.state,
      link: '#/cluster',
      why: n.status?.message,
      time: n.seenTime,
    })),
  ]
}

const kindName = (name) => name.split('/')[2]

function Rows({ of: rows, empty }) {
  if (!rows.length) return html`<p class="dim">${empty}</p>`
  return html`<div class="scroll">
    <table>
      <tbody>
        ${rows.map(
          (r) =>
            html`<tr key=${r.name}>
              <td><a href=${r.link}>${idOf(r.name)}</a> <small class="dim"> ${kindName(r.name)}</small></td>
              <td><${State} of=${r.state} /></td>
              <td>${r.why}</td>
              <td><${Time} of=${r.time} /></td>
            </tr>`,
        )}
      </tbody>
    </table>
  </div>`
}

export function Home() {
  const { value, error } = useAll()
  if (!value && !error)
    return html`<${Pending} title="Home" />`
  const running = value
    ? [
        ...value.jobs
          .filter((j) => live.includes(j.state))
          .map((j) => ({
            name: j.name,
            state: j.state,
            time: j.createTime,
            link: `#/jobs/${j.kind.short}/${idOf(j.name)}`,
            why: html`<${Progress} of=${j.jobProgress} />`,
          })),
        ...value.deployments
          .filter((d) => d.state !== 'FAILED')
          .map((d) => ({
            name: d.name,
            state: d.state,
            time: d.updateTime,
            link: `#/deployments/${idOf(d.name)}`,
            why: `${d.replicaStats?.readyReplicaCount || 0} of ${d.desiredReplicaCount || 0} replicas`,
          })),
      ]
    : []
  return html`<h1>Home</h1>
    <${ErrorBox} error=${error} />
    ${
      value &&
      html`<section>
          <h2>Needs attention</h2>
          <${Rows} of=${attention(value)} empty="Nothing needs attention." />
        </section>
        <section>
          <h2>Running</h2>
          <${Rows} of=${running} empty="No job and no deployment is running." />
        </section>`
    }
    <p class="links">
      ${
        can('write') &&
        html`<a class="button primary" href="#/new-job">New job</a>
          <a class="button" href="#/new-deployment">New deployment</a>`
      }
      ${can('infer') && html`<a class="button" href="#/playground">Playground</a>`}
    </p>`
}

export function Progress({ of: p }) {
  if (!p?.steps) return null
  return html`<span class="progress"
    ><progress max="100" value=${p.percent} aria-label="progress"></progress> ${`step ${p.step} of ${p.steps}`}${
      p.secondsLeft ? `, ${p.secondsLeft} s left` : ''
    }</span
  >`
}
