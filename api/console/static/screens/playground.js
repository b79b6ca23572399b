import { html, useEffect, useRef, useState } from '/console/vendor/htm-preact.js'
import { get, lines, request } from '/console/client.js'
import { Action, Choice, ErrorBox, Pending, Snippets, Table, useLoaded, useParameter } from '/console/ui.js'
import { snippets } from '/console/screens/deployments.js'

// bodyOf returns the path and the body of the request for the settings of a column.
function bodyOf(s, prompt) {
  const body = { max_tokens: Number(s.maxTokens), temperature: Number(s.temperature) }
  if (s.topP !== '1') body.top_p = Number(s.topP)
  if (s.schema.trim())
    body.response_format = { type: 'json_schema', json_schema: { name: 'answer', schema: JSON.parse(s.schema) } }
  if (s.mode === 'completion') return ['/inference/v1/completions', { ...body, prompt }]
  const system = s.system.trim() ? [{ role: 'system', content: s.system }] : []
  return ['/inference/v1/chat/completions', { ...body, messages: [...system, { role: 'user', content: prompt }] }]
}

// stream runs a request and calls show with the response so far:
// {tokens: [{text, logprob}], first, took, usage}; times are in milliseconds.
async function stream(path, body, signal, show) {
  const began = performance.now()
  const so = { tokens: [], first: 0, took: 0, usage: null }
  const chat = path.includes('chat')
  const logprobs = chat ? { logprobs: true } : { logprobs: 1 }
  const response = await request('POST', path, {
    signal,
    body: { ...body, ...logprobs, stream: true, stream_options: { include_usage: true } },
  })
  for await (const line of lines(response)) {
    if (!line.startsWith('data: ') || line === 'data: [DONE]') continue
    const part = JSON.parse(line.slice(6))
    if (part.error) throw new Error(part.error.message)
    so.usage = part.usage || so.usage
    const choice = part.choices?.[0]
    const text = chat ? choice?.delta?.content : choice?.text
    if (text) {
      so.first ||= performance.now() - began
      const details = chat
        ? choice.logprobs?.content
        : choice.logprobs?.tokens?.map((token, i) => ({ token, logprob: choice.logprobs.token_logprobs[i] }))
      const whole = details?.map((d) => d.token).join('') === text
      so.tokens.push(...(whole ? details.map((d) => ({ text: d.token, logprob: d.logprob })) : [{ text }]))
    }
    so.took = performance.now() - began
    show({ ...so })
  }
}

// tone returns the class of a token: the probability that the model gave to it.
const tone = (logprob) => (logprob == null ? '' : logprob > -0.1 ? 'p-high' : logprob > -1 ? 'p-mid' : 'p-low')

const initial = { mode: 'chat', system: '', temperature: '0', topP: '1', maxTokens: '64', schema: '' }

function Column({ models, initialModel, prompt, label, useColumn }) {
  const [model, setModel] = useState(initialModel)
  const [s, setS] = useState(initial)
  const [response, setResponse] = useState(null)
  const [error, setError] = useState(null)
  const [busy, setBusy] = useState(false)
  const [code, setCode] = useState(false)
  const abort = useRef()
  const set = (name) => (e) => setS({ ...s, [name]: e.target.value })
  useEffect(() => () => abort.current?.abort(), []) // leaving the screen ends the generation
  const run = async () => {
    if (busy) return
    setError(null)
    setResponse(null)
    setBusy(true)
    abort.current = new AbortController()
    try {
      const [path, body] = bodyOf(s, prompt.current.value)
      await stream(path, { model, ...body }, abort.current.signal, setResponse)
    } catch (e) {
      if (!abort.current.signal.aborted) setError(e)
    }
    setBusy(false)
  }
  useColumn(run)
  const generated = response?.usage?.completion_tokens ?? response?.tokens.length
  const seconds = response && (response.took - response.first) / 1000
  let shown = {}
  if (code) {
    try {
      const [path, body] = bodyOf(s, prompt.current.value)
      shown = snippets(model, path.replace('/inference', ''), body)
    } catch (e) {
      shown = { error: `the JSON schema is not JSON: ${e.message}` }
    }
  }
  return html`<section class="column" aria-label=${label}>
    <div class="controls">
      <label
        >Model
        <select value=${model} onChange=${(e) => setModel(e.target.value)}>
          ${!models.some((m) => m.id === model) && html`<option value=${model}>${model || 'choose a model'}</option>`}
          ${models.map((m) => html`<option value=${m.id}>${m.id}</option>`)}
        </select></label
      >
      <label
        >Mode
        <select value=${s.mode} onChange=${set('mode')}>
          <option value="chat">chat</option>
          <option value="completion">completion</option>
        </select></label
      >
      <label
        >Temperature
        <input type="number" min="0" max="2" step="0.1" value=${s.temperature} onInput=${set('temperature')}
      /></label>
      <label>Maximum tokens <input type="number" min="1" value=${s.maxTokens} onInput=${set('maxTokens')} /></label>
    </div>
    <details>
      <summary>More settings</summary>
      <label
        >Top p <input type="number" min="0" max="1" step="0.05" value=${s.topP} onInput=${set('topP')}
      /></label>
      <label
        >System prompt
        <textarea
          rows="2"
          value=${s.system}
          onInput=${set('system')}
          disabled=${s.mode === 'completion'}
        ></textarea>
      </label>
      <label
        >JSON schema of the response
        <textarea rows="3" spellcheck="false" value=${s.schema} onInput=${set('schema')}></textarea>
      </label>
    </details>
    <div class="controls">
      <button class="primary" disabled=${busy || !model} onClick=${run}>${response ? 'Retry' : 'Send'}</button>
      <button disabled=${!busy} onClick=${() => abort.current.abort()}>Stop</button>
      <button aria-expanded=${code} onClick=${() => setCode(!code)}>View code</button>
    </div>
    <${ErrorBox} error=${error} />
    <div class="response" role="log" aria-live="polite" aria-label="Response">
      ${response?.tokens.map(
        (t) =>
          html`<span
            class=${tone(t.logprob)}
            title=${t.logprob == null ? null : `probability ${Math.exp(t.logprob).toFixed(3)}`}
            >${t.text}</span
          >`,
      )}
    </div>
    ${
      response &&
      html`<p class="dim stats">
        first token ${Math.round(response.first)} ms${
          seconds > 0 && html` · ${Math.round((generated - 1) / seconds)} tokens/s`
        } · ${generated} tokens${
          response.usage &&
          html` · prompt ${response.usage.prompt_tokens} tokens
          (${response.usage.prompt_tokens_details?.cached_tokens || 0} cached)`
        }
      </p>`
    }
    ${code && html`<${Snippets} of=${shown} />`}
  </section>`
}

// Speech transcribes a recording.
function Speech({ models }) {
  const [model, setModel] = useState(models[0].id)
  const [task, setTask] = useState('transcriptions')
  const [file, setFile] = useState(null)
  const [url, setUrl] = useState('')
  const [result, setResult] = useState(null)
  useEffect(() => () => url && URL.revokeObjectURL(url), [url])
  const take = (f) => {
    setFile(f)
    setResult(null)
    setUrl(f ? URL.createObjectURL(f) : '')
  }
  const run = async () => {
    if (!file) throw new Error('choose a recording')
    const form = new FormData()
    for (const [k, v] of Object.entries({ model, response_format: 'verbose_json', file })) form.append(k, v)
    const began = performance.now()
    const response = await request('POST', `/inference/v1/audio/${task}`, { body: form })
    return { ...(await response.json()), took: performance.now() - began }
  }
  return html`<section class="column" aria-label="Speech">
    <div class="controls">
      <${Choice} label="Speech model" value=${model} set=${setModel} options=${models.map((m) => m.id)} />
      <${Choice}
        label="Task"
        value=${task}
        set=${setTask}
        options=${[
          ['transcriptions', 'transcribe'],
          ['translations', 'translate into English'],
        ]}
      />
      <label>Recording <input type="file" accept="audio/*" onChange=${(e) => take(e.target.files[0])} /></label>
      <${Action} primary run=${run} done=${setResult}>Transcribe<//>
    </div>
    ${url && html`<audio controls src=${url} aria-label="Recording"></audio>`}
    ${
      result &&
      html`<div class="response" role="status">${result.text}</div>
        <p class="dim stats">${result.language} · ${result.duration} s of audio in ${Math.round(result.took)} ms</p>
        <${Table}
          label="Segments"
          head=${['From (s)', 'To (s)', 'Text']}
          empty="There are no segments."
          rows=${(result.segments || []).map((s) => [s.start, s.end, s.text])}
        />`
    }
  </section>`
}

export function Playground() {
  const { value, error } = useLoaded(
    (signal) => get('/inference/v1/models', { signal }),
    [],
    (e) => e.subject.includes('/deployments/') || e.subject.includes('/deployedModels/'),
  )
  const [model] = useParameter('model')
  const [two, setTwo] = useParameter('columns', '1')
  const prompt = useRef()
  const runs = useRef({})
  if (!value)
    return html`<${Pending} title="Playground" error=${error} />`
  const models = value.data.filter((m) => m.deployed && m.kind !== 'SPEECH_MODEL')
  const speech = value.data.filter((m) => m.deployed && m.kind === 'SPEECH_MODEL')
  const first = model || models[0]?.id || ''
  const second = models.find((m) => m.id !== first)?.id || first
  const column = (n) => (run) => {
    runs.current[n] = run
  }
  const all = () => Object.values(runs.current).forEach((run) => run())
  const columns = two === '2' ? 2 : 1
  if (columns === 1) delete runs.current[1]
  return html`<div class="title">
      <h1>Playground</h1>
      <button onClick=${() => setTwo(columns === 2 ? '1' : '2')}>
        ${columns === 2 ? 'One column' : 'Compare two models'}
      </button>
    </div>
    <${ErrorBox} error=${error} />
    ${!models.length && html`<p>No model is deployed. <a href="#/new-deployment">Create a deployment</a> first.</p>`}
    <label class="prompt"
      >Prompt
      <textarea
        ref=${prompt}
        rows="4"
        onKeyDown=${(e) => (e.ctrlKey || e.metaKey) && e.key === 'Enter' && all()}
        placeholder="Ctrl-Enter sends the prompt to all columns"
      ></textarea>
    </label>
    ${columns === 2 && html`<button class="primary" onClick=${all}>Send to both</button>`}
    <div class=${`columns n${columns}`}>
      <${Column}
        key="a"
        label="First model"
        models=${models}
        initialModel=${first}
        prompt=${prompt}
        useColumn=${column(0)}
      />
      ${
        columns === 2 &&
        html`<${Column}
          key="b"
          label="Second model"
          models=${models}
          initialModel=${second}
          prompt=${prompt}
          useColumn=${column(1)}
        />`
      }
    </div>
    ${speech.length > 0 && html`<h2>Speech</h2><${Speech} models=${speech} />`}`
}
