// The newest release of a deployment, which moves its requests to another deployment step by step.
import { html, useEffect, useState } from '/console/vendor/htm-preact.js'
import { at, get, post, query } from '/console/client.js'
import { Action, Choice, ErrorBox, Facts, Field, State, Table, Time, idOf, number, useLoaded } from '/console/ui.js'

const figuresPause = 2000 // milliseconds between reads of the figures, for which there are no events

// StartRelease starts a release to another deployment. Empty settings have the defaults of the server.
function StartRelease({ deployment: d, done }) {
  const [s, setS] = useState({
    candidate: '',
    mode: 'CANARY',
    promotion: 'AUTOMATIC',
    steps: '1, 5, 25, 50',
    samples: '50',
  })
  const set = (name) => (to) => setS({ ...s, [name]: to })
  const { value, error } = useLoaded(
    (signal) =>
      get(at('deployments') + query({ filter: 'state != DELETED', pageSize: 200, orderBy: 'name' }), { signal }),
    [],
    (e) => e.subject.includes('/deployments/'),
  )
  const others = (value?.deployments || []).filter((o) => o.name !== d.name)
  const start = () =>
    post(`${at(d.name)}:startRelease`, {
      candidate: s.candidate,
      mode: s.mode,
      promotion: s.promotion,
      steps: s.steps.split(',').map(Number),
      minSamples: Number(s.samples),
    })
  return html`<h2>Start a release</h2>
    <${ErrorBox} error=${error} />
    <div class="controls">
      <${Choice}
        label="Candidate"
        value=${s.candidate}
        set=${set('candidate')}
        options=${[['', 'choose a deployment'], ...others.map((o) => [o.name, idOf(o.name)])]}
      />
      <${Choice}
        label="Mode"
        value=${s.mode}
        set=${set('mode')}
        options=${[
          ['CANARY', 'the candidate answers its share'],
          ['SHADOW', 'the candidate gets copies'],
        ]}
      />
      <${Choice}
        label="After the last step"
        value=${s.promotion}
        set=${set('promotion')}
        options=${[
          ['AUTOMATIC', 'promote'],
          ['MANUAL', 'wait for me'],
        ]}
      />
      <${Field} label="Steps (%)" value=${s.steps} set=${set('steps')} />
      <${Field} label="Requests in a step" type="number" min="1" value=${s.samples} set=${set('samples')} />
      <${Action} primary run=${start} done=${done}>Start<//>
    </div>`
}

const milliseconds = (seconds) => (seconds ? `${(1000 * seconds).toFixed(1)} ms` : '–')

// Release shows the newest release of a deployment, and starts, promotes or rolls back one.
export function Release({ deployment: d, edit, reload }) {
  const t = d.trafficSplit
  const open = ['RUNNING', 'WAITING'].includes(t?.state)
  useEffect(() => {
    if (t?.state !== 'RUNNING') return
    const timer = setInterval(() => document.hidden || reload(), figuresPause)
    return () => clearInterval(timer)
  }, [t?.state])
  const end = (verb) => () => post(`${at(d.name)}:${verb}`, {})
  const arm = (title, f) => [
    title,
    number(f.requests),
    number(f.errors),
    milliseconds(f.firstTokenP50),
    milliseconds(f.firstTokenP90),
    milliseconds(f.perTokenP50),
    milliseconds(f.perTokenP90),
  ]
  return html`${!t && html`<p class="dim">This deployment had no release.</p>`}
    ${
      t &&
      html`<div class="title">
          <h2>Release ${t.number} to <a href=${`#/deployments/${idOf(t.candidate)}`}>${idOf(t.candidate)}</a></h2>
          <${State} of=${t.state} />
          ${
            edit &&
            open &&
            html`<${Action} run=${end('promoteRelease')} confirm="Send all requests there?">Promote<//>`
          }
          ${
            edit &&
            t.state !== 'ROLLED_BACK' &&
            html`<${Action} run=${end('rollBackRelease')} confirm="Send no requests there?">Roll back<//>`
          }
        </div>
        <${Facts}
          of=${[
            ['Requests to the candidate', `${t.percent} %`],
            ['Step', `${t.step} of ${t.steps.length}: ${t.steps.join(', ')} %`],
            ['Reason', t.reason],
            ['Mode', t.mode],
            ['Selects', t.selection],
            ['After the last step', t.promotion],
            ['Errors at most', `${t.maxErrorIncreasePercent} percentage points more`],
            ['Latency at most', `${t.maxLatencyPercent} %`],
            ['Requests in a step', t.minSamples],
            ['Begun by', t.createdBy],
            ['Begun', html`<${Time} of=${t.startTime} />`],
            ['Step since', html`<${Time} of=${t.stepTime} />`],
          ]}
        />
        <${Table}
          label="Requests of the step"
          head=${['To', 'Requests', 'Errors', 'First token, half', '90 %', 'Each token, half', '90 %']}
          rows=${[arm('this deployment', t.figures.stable), arm('the candidate', t.figures.candidate)]}
        />`
    }
    ${edit && !open && html`<${StartRelease} deployment=${d} done=${reload} />`}`
}
