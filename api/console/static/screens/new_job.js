import { html, useEffect, useState } from '/console/vendor/htm-preact.js'
import { at, get, jobKinds, kindOf, post, query, quoted, readableModels, remove } from '/console/client.js'
import { session } from '/console/client.js'
import { Action, Delete, ErrorBox, Snippets, State, idOf, number, useLoaded } from '/console/ui.js'
import { useParameter } from '/console/ui.js'

const idFrom = (name) =>
  name
    .toLowerCase()
    .replace(/\.[^.]*$/, '')
    .replace(/[^a-z0-9-]+/g, '-')
    .replace(/^[^a-z]+|-+$/g, '')
    .slice(0, 50)

// Upload creates a dataset from a file and uploads its rows, or uploads them into a dataset whose upload failed.
// If the upload fails, it can be repeated, or the dataset deleted.
export function Upload({ done, into }) {
  const [error, setError] = useState(null)
  const [busy, setBusy] = useState('')
  const [over, setOver] = useState(false)
  const [left, setLeft] = useState(null) // {id, file} of an upload that failed
  const send = async (id, file) => {
    const form = new FormData()
    form.append('file', file)
    await post(`${at(`datasets/${id}`)}:upload`, form)
    setLeft(null)
    done?.(`accounts/${session.account}/datasets/${id}`)
  }
  const take = async (file, id = into) => {
    if (!file) return
    setError(null)
    setBusy(file.name)
    let target = id
    try {
      if (!target) {
        const made = `${idFrom(file.name) || 'dataset'}-${Date.now().toString(36)}`
        await post(at('datasets'), { datasetId: made, dataset: { displayName: file.name } })
        target = made
      }
      await send(target, file)
    } catch (e) {
      setError(e)
      if (target) setLeft({ id: target, file })
    }
    setBusy('')
  }
  return html`<label
      class=${over ? 'drop over' : 'drop'}
      onDragOver=${(e) => {
        e.preventDefault()
        setOver(true)
      }}
      onDragLeave=${() => setOver(false)}
      onDrop=${(e) => {
        e.preventDefault()
        setOver(false)
        take(e.dataTransfer.files[0])
      }}
    >
      <input type="file" accept=".jsonl,application/jsonl" onChange=${(e) => take(e.target.files[0])} />
      <span>${busy ? `Uploading ${busy}…` : 'Drop a JSONL file here, or choose one'}</span></label
    ><${ErrorBox} error=${error} />
    ${
      left &&
      !busy &&
      html`<div class="error" role="alert">
        <p>The dataset ${left.id} was created, but its file was not uploaded.</p>
        <button onClick=${() => take(left.file, left.id)}>Upload again</button>
        <${Action} run=${() => remove(at(`datasets/${left.id}`))} done=${() => setLeft(null) || setError(null)}
          >Delete the dataset<//
        >
      </div>`
    }`
}

// DatasetState shows whether the rows of a dataset are valid, and the faults by line.
export function DatasetState({ name }) {
  const { value: d, error } = useLoaded(
    (signal) => get(at(name), { signal }),
    [name],
    (e) => e.subject === name,
  )
  if (!d) return html`<${ErrorBox} error=${error} />`
  return html`<p role="status">
      <${State} of=${d.state} /> ${number(d.exampleCount)} rows ${d.rowShape && `· ${d.rowShape}`}
      ${d.estimatedTokenCount > 0 && ` · about ${number(d.estimatedTokenCount)} tokens`}
    </p>
    ${d.status?.code !== 'OK' && html`<p class="error" role="alert">${d.status.message}</p>`}`
}

const methods = ['sft', 'dpo', 'rft'].map(kindOf)

// jobOf returns the body of the job for the settings of the form.
function jobOf(s) {
  const shared = {
    epochs: Number(s.epochs),
    loraRank: Number(s.loraRank),
    ...(s.learningRate && { learningRate: Number(s.learningRate) }),
  }
  const base = s.base ? { baseModel: s.base } : {} // a clone may continue an adapter instead
  if (s.method === 'sft') return { ...s.kept, dataset: s.dataset, ...base, ...shared }
  const trainingConfig = { ...s.kept?.trainingConfig, ...base, ...shared }
  return { ...s.kept, dataset: s.dataset, trainingConfig, ...(s.method === 'rft' && { evaluator: s.evaluator }) }
}

// outputs are the fields that the server sets, and the output model, which must be new for each job.
const outputs = ['name', 'createTime', 'updateTime', 'completedTime', 'state', 'status', 'createdBy', 'jobProgress',
  'estimatedCost', 'acceleratorSeconds', 'attempt', 'queue', 'trainerLogsSignedUrl', 'metricsFileSignedUrl',
  'outputModel', 'outputStats', 'outputMetrics', 'mcpServer', 'priority']

// settingsOf returns the settings of a job without its outputs.
function settingsOf(job) {
  const kept = Object.fromEntries(Object.entries(job).filter(([k]) => !outputs.includes(k)))
  if (kept.trainingConfig) {
    kept.trainingConfig = { ...kept.trainingConfig }
    delete kept.trainingConfig.outputModel
  }
  return kept
}

function Review({ settings: s, kind, body }) {
  const id = s.id || 'ID'
  const url = `${location.origin}${at(kind.collection)}${query({ [kind.id]: id })}`
  const flags = [
    `--dataset ${quoted(idOf(s.dataset))}`,
    s.base && `--base-model ${quoted(s.base)}`,
    `--epochs ${quoted(s.epochs)}`,
    `--lora-rank ${quoted(s.loraRank)}`,
    s.learningRate && `--learning-rate ${quoted(s.learningRate)}`,
    s.method === 'rft' && `--evaluator ${idOf(s.evaluator)}`,
  ].filter(Boolean)
  return html`<${Snippets}
    of=${{
      ...(s.kept ? {} : { CLI: `anneal ${kind.short} create ${quoted(id)} ${flags.join(' ')}` }),
      curl: `curl ${quoted(url)} \\\n  -H "Authorization: Bearer $ANNEAL_API_KEY" \\\n` +
        `  -d ${quoted(JSON.stringify(body))}`,
    }}
  />`
}

function Cost({ kind, body }) {
  const [cost, setCost] = useState(null)
  const text = JSON.stringify(body)
  useEffect(() => {
    if (kind.short !== 'sft' || !body.dataset || !body.baseModel) return setCost(null)
    const abort = new AbortController()
    post(`${at(kind.collection)}:estimateCost`, { supervisedFineTuningJob: body }, { signal: abort.signal }).then(
      (r) => setCost(r.estimatedCost),
      () => setCost(null),
    )
    return () => abort.abort()
  }, [kind.short, text])
  return (
    cost &&
    html`<p>
      Estimated cost: ${cost.units}${cost.nanos ? `.${String(cost.nanos).padStart(9, '0').slice(0, 2)}` : ''}
      ${` ${cost.currencyCode}`}
    </p>`
  )
}

export function NewJob() {
  const [from] = useParameter('from')
  const [s, setS] = useState({
    method: 'sft',
    dataset: '',
    base: '',
    id: '',
    epochs: '1',
    loraRank: '8',
    learningRate: '',
    evaluator: '',
    outputModel: '',
  })
  const set = (name) => (e) => setS({ ...s, [name]: e.target.value })
  const choices = useLoaded(
    async (signal) => {
      const page = (c) => get(at(c) + query({ pageSize: 200, orderBy: 'createTime desc' }), { signal })
      const [datasets, models, evaluators] = await Promise.all([
        page('datasets'),
        readableModels(signal),
        page('evaluators'),
      ])
      return {
        datasets: datasets.datasets || [],
        models,
        evaluators: evaluators.evaluators || [],
      }
    },
    [],
    (e) => e.subject.includes('/datasets/'),
  )
  useEffect(() => {
    if (from)
      get(at(from)).then(
        (job) => {
          const kind = jobKinds.find((k) => from.includes(`/${k.collection}/`))
          const c = job.trainingConfig || job
          setS((s) => ({
            ...s,
            method: kind.short,
            dataset: job.dataset || '',
            kept: settingsOf(job),
            base: c.baseModel && !c.warmStartFrom ? c.baseModel : '',
            evaluator: job.evaluator || '',
            epochs: String(c.epochs || 1),
            loraRank: String(c.loraRank ?? 8),
            learningRate: c.learningRate ? String(c.learningRate) : '',
          }))
        },
        () => {},
      )
  }, [from])
  const kind = kindOf(s.method)
  const body = jobOf(s)
  const known = choices.value || { datasets: [], models: [], evaluators: [] }
  const bases = known.models.filter((m) => m.state === 'READY' && !['SPEECH_MODEL', 'HF_PEFT_ADDON'].includes(m.kind))
  return html`<h1>New job</h1>
    <${ErrorBox} error=${choices.error} />
    <div class="form">
      <fieldset>
        <legend>1. Method</legend>
        ${methods.map(
          (k) =>
            html`<label class="choice"
              ><input
                type="radio"
                name="method"
                value=${k.short}
                checked=${s.method === k.short}
                onChange=${set('method')}
              />
              ${
                {
                  sft: 'Supervised: learn from example completions',
                  dpo: 'DPO: learn from preferred and rejected completions',
                  rft: 'Reinforcement: learn from the scores of an evaluator',
                }[k.short]
              }</label
            >`,
        )}
      </fieldset>
      <fieldset>
        <legend>2. Dataset</legend>
        <${Upload}
          done=${(name) => {
            choices.reload()
            setS((s) => ({ ...s, dataset: name }))
          }}
        />
        <label
          >or one of the account
          <select value=${s.dataset} onChange=${set('dataset')}>
            <option value="">choose a dataset</option>
            ${known.datasets.map((d) => html`<option value=${d.name}>${d.displayName || idOf(d.name)}</option>`)}
            ${s.dataset && !known.datasets.some((d) => d.name === s.dataset) &&
              html`<option value=${s.dataset}>${idOf(s.dataset)}</option>`}
          </select></label
        >${s.dataset && html`<${DatasetState} key=${s.dataset} name=${s.dataset} />`}
      </fieldset>
      <fieldset>
        <legend>3. Base model</legend>
        <label
          >Model
          <select value=${s.base} onChange=${set('base')}>
            <option value="">choose a model</option>
            ${bases.map((m) => html`<option value=${m.name}>${idOf(m.name)}</option>`)}
          </select></label
        >
        ${
          s.method === 'rft' &&
          html`<label
            >Evaluator
            <select value=${s.evaluator} onChange=${set('evaluator')}>
              <option value="">choose an evaluator</option>
              ${known.evaluators.map((e) => html`<option value=${e.name}>${idOf(e.name)}</option>`)}
            </select></label
          >`
        }
      </fieldset>
      <fieldset>
        <legend>4. Settings</legend>
        <label>ID <input value=${s.id} onInput=${set('id')} placeholder="generated" /></label>
        <label>Epochs <input type="number" min="1" value=${s.epochs} onInput=${set('epochs')} /></label>
        <label>LoRA rank <input type="number" min="0" value=${s.loraRank} onInput=${set('loraRank')} /></label>
        <label
          >Learning rate
          <input value=${s.learningRate} onInput=${set('learningRate')} placeholder="default of the method"
        /></label>
      </fieldset>
      <fieldset>
        <legend>5. Review</legend>
        <${Cost} kind=${kind} body=${body} /><${Review} settings=${s} kind=${kind} body=${body} />
        <${Action}
          primary
          run=${() => post(at(kind.collection) + query({ [kind.id]: s.id }), body)}
          done=${(job) => {
            location.hash = `#/jobs/${kind.short}/${idOf(job.name)}`
          }}
          >Create the job<//
        >
      </fieldset>
    </div>`
}
