// Components that several screens use.
import { Component, html, useCallback, useEffect, useRef, useState } from '/console/vendor/htm-preact.js'
import { at, events, get, query, remove } from '/console/client.js'

// route returns the path and the parameters of a location hash such as #/jobs/sft/a?filter=b. A path with a
// part that cannot be the ID of a resource leads to no screen: parts become parts of the paths of requests.
function route() {
  const [path, parameters = ''] = location.hash.replace(/^#\/?/, '').split('?')
  const parts = path.split('/').filter(Boolean)
  return {
    path: parts.every((part) => /^[a-z0-9][a-z0-9-]*$/.test(part)) ? parts : ['missing'],
    parameters: new URLSearchParams(parameters),
  }
}

// useRoute returns the parts of the path in the location.
export function useRoute() {
  const [parts, setParts] = useState(route().path)
  useEffect(() => {
    const changed = () => setParts(route().path)
    changed() // the location may have changed since the first rendering
    addEventListener('hashchange', changed)
    return () => removeEventListener('hashchange', changed)
  }, [])
  return parts
}

// useParameter returns a parameter of the location, and a function that sets it.
export function useParameter(name, initial = '') {
  const read = () => route().parameters.get(name) ?? initial
  const [value, setValue] = useState(read)
  useEffect(() => {
    const changed = () => setValue(read())
    addEventListener('hashchange', changed)
    return () => removeEventListener('hashchange', changed)
  }, [name])
  const set = useCallback(
    (to) => {
      const { path, parameters } = route()
      to && to !== initial ? parameters.set(name, to) : parameters.delete(name)
      const text = parameters.toString()
      history.replaceState(null, '', `#/${path.map(encodeURIComponent).join('/')}${text ? `?${text}` : ''}`)
      setValue(to)
    },
    [name],
  )
  return [value, set]
}

// Guard shows an error that a component below it throws, instead of the component.
export class Guard extends Component {
  componentDidCatch(error) {
    this.setState({ error })
  }
  render({ children }, { error }) {
    return error ? html`<h1>Error</h1><${ErrorBox} error=${error} />` : children
  }
}

// focusMain moves the focus to the main content, unless an element of it has the focus.
export function focusMain(always) {
  const main = document.getElementById('main')
  if (main && (always || !main.contains(document.activeElement))) main.focus({ preventScroll: !always })
}

export function ErrorBox({ error }) {
  if (!error) return null
  const violations = error.violations || []
  return html`<div class="error" role="alert">
    ${
      violations.length
        ? html`<ul>
            ${violations.map((v) => html`<li><code>${v.field}</code> ${v.description}</li>`)}
          </ul>`
        : html`<p>${error.message}</p>`
    }
    ${error.requestId && html`<small>request ${error.requestId}</small>`}
  </div>`
}

// Pending is a screen whose resource is not read yet, or cannot be read.
export const Pending = ({ title, error }) =>
  html`<h1>${title}</h1>
    ${error ? html`<${ErrorBox} error=${error} />` : html`<p class="dim">Loading…</p>`}`

const tones = {
  good: ['READY', 'COMPLETED', 'JOB_STATE_COMPLETED', 'ACTIVE', 'DEPLOYED', 'PROMOTED', 'JOB_STATE_EARLY_STOPPED'],
  bad: [
    'FAILED',
    'JOB_STATE_FAILED',
    'LOST',
    'ROLLED_BACK',
    'REVOKED',
    'JOB_STATE_EXPIRED',
    'BUILD_FAILED',
    'DISABLED',
    'UNHEALTHY',
  ],
  idle: [
    'JOB_STATE_CANCELLED',
    'JOB_STATE_PAUSED',
    'DELETED',
    'DELETING',
    'JOB_STATE_DELETING',
    'PAUSED',
    'CORDONED',
  ],
}

// State shows a state by its name and by a color.
export function State({ of: state = '' }) {
  const tone = Object.keys(tones).find((t) => tones[t].includes(state)) || 'busy'
  return html`<span class=${`state ${tone}`}
    >${state.replace('JOB_STATE_', '').replaceAll('_', ' ').toLowerCase()}</span
  >`
}

export const idOf = (name = '') => name.split('/').pop()

// Time shows a time relative to now, and exactly in its title.
export function Time({ of: text }) {
  const [, tick] = useState(0)
  useEffect(() => {
    const timer = setInterval(() => tick((n) => n + 1), 10000)
    return () => clearInterval(timer)
  }, [])
  if (!text) return html`<span class="dim">–</span>`
  const seconds = (Date.now() - new Date(text)) / 1000
  const units = [
    ['d', 86400],
    ['h', 3600],
    ['min', 60],
    ['s', 1],
  ]
  const [unit, size] = units.find(([, size]) => Math.abs(seconds) >= size) || units[3]
  const n = Math.round(Math.abs(seconds) / size)
  return html`<time datetime=${text} title=${text}>${seconds < 0 ? `in ${n} ${unit}` : `${n} ${unit} ago`}</time>`
}

export const number = (n) => (n == null ? '–' : Number(n).toLocaleString('en'))

// bytesOf returns a number of MiB as text.
export const mib = (n) => (n >= 1024 ? `${(n / 1024).toFixed(1)} GiB` : `${n || 0} MiB`)

// useLoaded calls load, and calls it again after an event for which matters(event) is true arrives: at most
// once in each pause (in milliseconds), not while a call is in progress, and not while the tab is hidden. It
// returns {value, error, loading, reload}.
export function useLoaded(load, inputs, matters = () => false, pause = 1000) {
  const [result, setResult] = useState({ loading: true })
  const [round, setRound] = useState(0)
  const reload = useCallback(() => setRound((n) => n + 1), [])
  const wait = useRef({}).current // {timer, busy, outdated}
  const arm = () => {
    if (wait.timer || wait.busy || !wait.outdated || document.hidden) return
    wait.timer = setTimeout(() => {
      wait.timer = wait.outdated = null
      reload()
    }, pause)
  }
  useEffect(() => {
    const abort = new AbortController()
    const done = (next) => {
      if (abort.signal.aborted) return
      wait.busy = false
      setResult(next)
      arm()
    }
    wait.busy = true
    load(abort.signal).then(
      (value) => done({ value }),
      (error) => done((r) => ({ value: r.value, error })),
    )
    return () => abort.abort()
  }, [...inputs, round])
  useEffect(() => {
    const stop = events.on((event) => {
      if (event ? matters(event) : events.connected) {
        wait.outdated = true
        arm()
      }
    })
    document.addEventListener('visibilitychange', arm)
    return () => {
      stop()
      document.removeEventListener('visibilitychange', arm)
      clearTimeout(wait.timer)
      wait.timer = null
    }
  }, inputs)
  return { ...result, reload }
}

// useOne reads a resource, again after each of its events.
export const useOne = (name) =>
  useLoaded(
    (signal) => get(at(name), { signal }),
    [name],
    (e) => e.subject.endsWith(`/${name}`) || e.subject === name,
  )

// usePages returns the tokens of the pages that the user has turned: {token, back, next(page)}. They are those
// of one list: of is what selects and orders it.
export function usePages(of) {
  const [turned, setTurned] = useState({ of, tokens: [''] })
  const tokens = turned.of === of ? turned.tokens : ['']
  const set = (to) => setTurned({ of, tokens: to })
  return {
    token: tokens[tokens.length - 1],
    back: tokens.length > 1 ? () => set(tokens.slice(0, -1)) : null,
    next: (page) => set([...tokens, page.nextPageToken]),
  }
}

// Pager turns the pages of usePages. page is the response that is shown.
export function Pager({ pages, page, previous = 'Previous', next = 'Next' }) {
  return html`<div class="pager">
    <span>${page?.totalSize !== undefined && `${number(page.totalSize)} in total`}</span>
    <button disabled=${!pages.back} onClick=${pages.back}>${previous}</button>
    <button disabled=${!page?.nextPageToken} onClick=${() => pages.next(page)}>${next}</button>
  </div>`
}

// FilterForm edits the filter of a list. hint is an example; fields complete the last word.
export function FilterForm({ filter, setFilter, hint, fields = [] }) {
  const [draft, setDraft] = useState(filter)
  useEffect(() => setDraft(filter), [filter])
  const apply = (e) => {
    e.preventDefault()
    setFilter(draft)
  }
  return html`<form class="filter" onSubmit=${apply}>
    <input
      aria-label="Filter"
      list="fields"
      value=${draft}
      onInput=${(e) => setDraft(e.target.value)}
      spellcheck="false"
      placeholder=${`filter, such as ${hint}`}
    />
    <datalist id="fields">${fields.map((f) => html`<option value=${draft.replace(/[\w.]*$/, '') + f} />`)}</datalist>
    <button>Filter</button>
    ${filter && html`<button type="button" onClick=${() => setFilter('')}>Clear</button>`}
  </form>`
}

// Action is a button that runs a request. With confirm, the user must press it twice.
export function Action({ run, confirm, children, done, primary }) {
  const [state, setState] = useState('')
  const [error, setError] = useState(null)
  const timer = useRef()
  useEffect(() => () => clearTimeout(timer.current), [])
  const press = async () => {
    if (confirm && state !== 'sure') {
      setState('sure')
      timer.current = setTimeout(() => setState(''), 4000)
      return
    }
    clearTimeout(timer.current)
    setState('busy')
    try {
      const result = await run()
      setError(null)
      done?.(result)
    } catch (e) {
      setError(e)
    }
    setState('')
  }
  return html`<span class="action"
    ><button
      class=${primary ? 'primary' : state === 'sure' ? 'danger' : ''}
      disabled=${state === 'busy'}
      onClick=${press}
    >
      ${state === 'sure' ? confirm : children}</button
    ><${ErrorBox} error=${error}
  /></span>`
}

// Delete deletes a resource, and then shows the screen at a route.
export const Delete = ({ name, what, to }) =>
  html`<${Action}
    run=${() => remove(at(name))}
    confirm=${`Delete the ${what}?`}
    done=${() => {
      if (to) location.hash = to
    }}
    >Delete<//
  >`

// Facts shows pairs of a term and a value, and leaves out those without a value.
export function Facts({ of: pairs }) {
  return html`<dl class="facts">
    ${pairs
      .filter(([, v]) => v || v === 0)
      .map(
        ([k, v]) =>
          html`<div>
            <dt>${k}</dt>
            <dd>${v}</dd>
          </div>`,
      )}
  </dl>`
}

let lists = 0 // number of lists of tabs, for IDs of elements

// Tabs shows a panel, and a tab for each of several panels: {key: title}. The arrow keys change the tab.
export function Tabs({ of: all, tab, setTab, label, children, extra, kind = 'tabs' }) {
  const [id] = useState(() => ++lists)
  const keys = Object.keys(all)
  const current = keys.includes(tab) ? tab : keys[0]
  const move = (e) => {
    const i = keys.indexOf(current)
    const to = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: -1 }[e.key]
    if (to === undefined) return
    e.preventDefault()
    const n = (to + keys.length) % keys.length
    setTab(keys[n])
    e.currentTarget.children[n].focus()
  }
  return html`<div class="bar">
      <div class=${kind} role="tablist" aria-label=${label} onKeyDown=${move}>
        ${keys.map(
          (k) =>
            html`<button
              role="tab"
              id=${`tab-${id}-${k}`}
              aria-controls=${`panel-${id}`}
              aria-selected=${k === current}
              tabindex=${k === current ? 0 : -1}
              onClick=${() => setTab(k)}
            >
              ${all[k]}
            </button>`,
        )}
      </div>
      ${extra}
    </div>
    <div role="tabpanel" id=${`panel-${id}`} aria-labelledby=${`tab-${id}-${current}`}>${children}</div>`
}

// Table shows rows, which are lists of cells. The first cell identifies the row if it is a text.
export function Table({ head, rows, empty, label }) {
  if (!rows.length && empty) return html`<p class="dim">${empty}</p>`
  return html`<div class="scroll" tabindex="0">
    <table aria-label=${label}>
      ${
        head &&
        html`<thead>
          <tr>
            ${head.map((h) => html`<th scope="col">${h}</th>`)}
          </tr>
        </thead>`
      }
      <tbody>
        ${rows.map(
          (r) =>
            html`<tr key=${typeof r[0] === 'string' ? r[0] : undefined}>
              ${r.map((c) => html`<td class=${typeof c === 'number' ? 'number' : null}>${c}</td>`)}
            </tr>`,
        )}
      </tbody>
    </table>
  </div>`
}

// Json shows a value as JSON without signed URLs, which give access to files to everyone who sees them.
export const Json = ({ of: value }) =>
  html`<pre tabindex="0">
${JSON.stringify(value, (k, v) => (/SignedUr[il]$/.test(k) ? undefined : v), 2)}</pre
  >`

// Field is a text field with a label.
export const Field = ({ label, value, set, ...rest }) =>
  html`<label>${label} <input value=${value} onInput=${(e) => set(e.target.value)} ...${rest} /></label>`

// Choice is a list with a label. options are values, or pairs of a value and a title.
export const Choice = ({ label, value, set, options }) =>
  html`<label
    >${label}
    <select value=${value} onChange=${(e) => set(e.target.value)}>
      ${options.map((o) => {
        const [v, title] = Array.isArray(o) ? o : [o, o]
        return html`<option value=${v} selected=${v === value}>${title}</option>`
      })}
    </select></label
  >`

// Snippets shows code in several languages: {title: text}.
export function Snippets({ of: all }) {
  const [title, setTitle] = useState('')
  const [copied, setCopied] = useState(false)
  const text = all[title] ?? Object.values(all)[0]
  const copy = async () => {
    await navigator.clipboard.writeText(text)
    setCopied(true)
    setTimeout(() => setCopied(false), 1500)
  }
  return html`<div class="snippets">
    <${Tabs}
      of=${Object.fromEntries(Object.keys(all).map((k) => [k, k]))}
      tab=${title}
      setTab=${setTitle}
      label="Languages"
      kind="languages"
      extra=${html`<button class="copy" onClick=${copy}>${copied ? 'Copied' : 'Copy'}</button>`}
    >
      <pre tabindex="0">${text}</pre>
    <//>
  </div>`
}
