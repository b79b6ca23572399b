// States of resources at positions and times, and their differences.
import { html, useEffect, useRef, useState } from '/console/vendor/htm-preact.js'
import { at, can, events, get, lines, query, request } from '/console/client.js'
import { Action, ErrorBox, Field, Json, Table, Time, idOf, number } from '/console/ui.js'
import { verify } from '/console/proof.js'

// stateAt returns a resource at a position or time, which may be empty for now; null if it did not exist.
export async function stateAt(name, asOf, signal) {
  try {
    return await get(at(name) + query({ asOf }), { signal })
  } catch (e) {
    if (e.status === 404) return null
    throw e
  }
}

// positionAt returns the position of the log at a time. A position is returned as it is.
export async function positionAt(text, signal) {
  if (/^\d+$/.test(text)) return Number(text)
  const response = await request('GET', at('datasets') + query({ asOf: text, pageSize: 1 }), { signal })
  return Number(response.headers.get('anneal-position'))
}

// flat returns the values of a resource by the dotted paths of their fields.
function flat(value, path = '', into = {}) {
  if (value && typeof value === 'object' && !Array.isArray(value)) {
    for (const [k, v] of Object.entries(value)) {
      if (!/SignedUr[il]$/.test(k)) flat(v, path ? `${path}.${k}` : k, into)
    }
  } else if (path) into[path] = JSON.stringify(value)
  return into
}

// differences returns the fields whose values differ: [field, before, after].
export function differences(before, after) {
  const [a, b] = [flat(before), flat(after)]
  return [...new Set([...Object.keys(a), ...Object.keys(b)])]
    .filter((k) => a[k] !== b[k])
    .map((k) => [k, a[k] ?? '', b[k] ?? ''])
}

// why returns the events that led to an event, oldest first, each with its relation to the next: its cause, an
// event of the same request, or the previous change of the resource, to which schedulers and nodes react. It
// ends at the request of an API key. path is that of the events that the key may read.
export async function why(event, path, signal) {
  const find = async (filter, orderBy = 'position') =>
    (await get(path + query({ filter, orderBy, pageSize: 100 }), { signal })).events || []
  const chain = [{ event, relation: '' }]
  while (!/\/apiKeys\//.test(event.actor || '') && chain.length < 50) {
    const earlier = (e) => Number(e.position) < Number(event.position)
    const same = event.correlation ? (await find(`correlation = "${event.correlation}"`)).filter(earlier) : []
    let from = same.find((e) => e.id === event.cause)
    let relation = 'cause'
    if (!from && same.length) [from, relation] = [same[0], 'same request']
    if (!from && event.cause) from = (await find(`id = "${event.cause}"`)).find(earlier)
    if (!from) {
      relation = 'previous change'
      from = (await find(`subject = "${event.subject}" AND position < ${event.position}`, 'position desc'))[0]
    }
    if (!from) break
    event = from
    chain.unshift({ event, relation })
  }
  return chain
}

// A timeline shows any number of events: only the rows in view are in the page, and only events near them in
// memory.

const height = 30 // of a row, in pixels
const tallest = 8e6 // pixels: browsers limit the height of an element
const size = 200 // events that are read at once
const maxKept = 8000 // events in memory
const maxLive = 5000 // new events before the list is read again

// forgetFar removes parts of a map of lists that are far from the part n, if all have too many events. The first
// part stays.
function forgetFar(parts, n) {
  const far = [...parts.keys()].filter((k) => k && k !== n).sort((a, b) => Math.abs(b - n) - Math.abs(a - n))
  let all = [...parts.values()].reduce((sum, p) => sum + p.length, 0)
  for (const k of far) {
    if (all <= maxKept) return
    all -= parts.get(k).length
    parts.delete(k)
  }
}

// Pages reads the events that match a filter, newest first, with the pages of the API.
class Pages {
  tokens = ['']
  pages = new Map()
  count = 0
  constructor(path, filter, signal, changed) {
    Object.assign(this, { path, filter, signal, changed })
  }

  at(i) {
    return this.pages.get(Math.floor(i / size))?.[i % size] || null
  }

  async read(n, readMask) {
    const parameters = {
      filter: this.filter,
      orderBy: 'position desc',
      pageSize: size,
      pageToken: this.tokens[n],
      readMask,
    }
    const page = await get(this.path + query(parameters), { signal: this.signal })
    if (page.nextPageToken) this.tokens[n + 1] = page.nextPageToken
    if (n === 0) this.count = page.totalSize
    return page.events || []
  }

  // want reads the pages of the events from first to last, until others are wanted.
  async want(first, last, current) {
    for (let n = Math.floor(first / size); n <= Math.floor(last / size); n++) {
      if (this.pages.has(n)) continue
      for (let known = 0; this.tokens.length <= n && this.tokens.length > known && current(); ) {
        known = this.tokens.length
        await this.read(known - 1, 'position')
      }
      if (this.tokens.length <= n || !current()) return
      this.pages.set(n, await this.read(n))
      forgetFar(this.pages, n)
      this.changed()
    }
  }
}

// eventsAfter yields the events after a position, and new ones as they are recorded.
export async function* eventsAfter(path, after, signal) {
  const headers = { Accept: 'text/event-stream', 'Last-Event-ID': String(Math.max(0, after)) }
  for await (const line of lines(await request('GET', path, { headers, signal }))) {
    if (line.startsWith('data: ')) yield JSON.parse(line.slice(6))
  }
}

// Windows reads all events of a history, newest first. The API reads a page quickly only in the order of the
// log, so the history is divided into windows of positions, and the event stream from a position reads one.
// The numbers of events in windows that are not read yet are estimates.
class Windows {
  live = [] // events after those of the windows
  rows = new Map() // events of the windows that are read
  counts = []
  starts = [0] // number of the first event of each window, without live ones
  constructor(path, signal, changed) {
    Object.assign(this, { path, signal, changed })
  }

  get count() {
    return this.live.length + this.starts.at(-1)
  }

  async open(factor = 1) {
    this.abort?.abort()
    this.abort = new AbortController()
    this.now = AbortSignal.any([this.signal, this.abort.signal])
    const [{ totalSize = 0 }, { position }] = await Promise.all([
      get(this.path + query({ pageSize: 1 }), { signal: this.now }),
      get('/readyz', { signal: this.now }),
    ])
    this.end = Number(position)
    this.width = Math.ceil((factor * size * this.end) / Math.max(1, totalSize))
    const windows = Math.ceil(this.end / this.width)
    this.counts = Array.from(
      { length: windows },
      (_, k) => Math.round((totalSize * (k + 1)) / windows) - Math.round((totalSize * k) / windows),
    )
    this.rows = new Map([[0, []]])
    this.live = []
    this.measure(0, 0)
    this.changed()
    this.follow(totalSize > 0 && windows > 1 && (() => this.open(4 * factor).catch(() => {})))
  }

  // measure sets the number of events in a window.
  measure(k, n) {
    this.counts[k] = n
    this.starts = [0]
    for (const c of this.counts) this.starts.push(this.starts.at(-1) + c)
  }

  // follow reads the newest window and new events. The end of another window is found by the first event after it,
  // so a newest window without events is made wider.
  async follow(widen) {
    const { now } = this
    const newest = this.rows.get(0)
    const timer = widen && setTimeout(() => newest.length || this.live.length || now.aborted || widen(), 1500)
    try {
      for await (const e of eventsAfter(this.path, this.end - this.width, now)) {
        const live = Number(e.position) > this.end
        ;(live ? this.live : newest).unshift(e)
        if (!live) this.measure(0, newest.length)
        this.changed(live ? 1 : 0)
      }
    } catch {
      // the connection is lost: the list is read again when it returns
    }
    clearTimeout(timer)
  }

  // window returns the number of the window with the event i.
  window(i) {
    let [low, high] = [0, this.counts.length - 1]
    while (low < high) {
      const mid = (low + high) >> 1
      if (this.starts[mid + 1] > i - this.live.length) high = mid
      else low = mid + 1
    }
    return low
  }

  at(i) {
    if (i < this.live.length) return this.live[i]
    const k = this.window(i)
    return this.rows.get(k)?.[i - this.live.length - this.starts[k]] || null
  }

  // want reads the windows of the events from first to last, until others are wanted.
  async want(first, last, current) {
    const { now } = this
    for (let k = this.window(first); k <= this.window(last) && current(); k++) {
      if (this.rows.has(k)) continue
      const rows = []
      try {
        for await (const e of eventsAfter(this.path, this.end - (k + 1) * this.width, now)) {
          if (Number(e.position) > this.end - k * this.width) break
          rows.unshift(e)
        }
      } catch (e) {
        if (now.aborted) return
        throw e
      }
      if (now.aborted) return
      const more = this.live.length + this.starts[k] < first ? rows.length - this.counts[k] : 0
      this.rows.set(k, rows)
      forgetFar(this.rows, k)
      this.measure(k, rows.length)
      this.changed(more)
    }
  }
}

// Timeline shows the events at a path.
export function Timeline({ path, filter = '', chosen, choose }) {
  const [, redraw] = useState(0)
  const [error, setError] = useState(null)
  const [loaded, setLoaded] = useState(false)
  const [round, setRound] = useState(0)
  const box = useRef()
  const own = useRef({}).current
  const draw = () => {
    own.frame ||= requestAnimationFrame(() => {
      own.frame = 0
      if (box.current) redraw((n) => n + 1)
    })
  }
  const run = async (what) => {
    const { signal } = own.abort
    try {
      await what()
      if (!signal.aborted) setLoaded(true)
    } catch (e) {
      if (!signal.aborted) setError(e)
    }
  }
  // look reads the events in view.
  const look = (first, rows) => {
    const turn = (own.turn = {})
    run(() => own.source.want(first, first + rows - 1, () => own.turn === turn))
  }
  useEffect(() => {
    own.abort = new AbortController()
    const changed = (above = 0) => {
      if (!box.current) return
      // what is in view stays in view
      if (above && own.scale === 1 && box.current.scrollTop > 0) box.current.scrollTop += above * height
      if (own.source.live?.length > maxLive && box.current.scrollTop === 0) setRound((n) => n + 1)
      draw()
    }
    own.source = filter
      ? new Pages(path, filter, own.abort.signal, changed)
      : new Windows(path, own.abort.signal, changed)
    setError(null)
    setLoaded(false)
    box.current.scrollTop = 0
    filter ? look(0, 1) : run(() => own.source.open())
    const stop = events.on((e) => e || !events.connected || setRound((n) => n + 1))
    return () => {
      own.abort.abort()
      stop()
    }
  }, [path, filter, round])

  const count = own.source?.count || 0
  const all = Math.min(count * height, tallest)
  const view = box.current?.clientHeight || 0
  const scroll = box.current?.scrollTop || 0
  own.scale = all < count * height && all > view ? (count * height - view) / (all - view) : 1
  const first = Math.max(0, Math.min(count - 1, Math.floor((scroll * own.scale) / height) - 5))
  const rows = Math.min(count - first, Math.ceil(view / height) + 10)
  const top = scroll + first * height - scroll * own.scale
  useEffect(() => {
    if (loaded && rows > 0) look(first, rows)
  }, [first, rows, loaded])
  const shown = Array.from({ length: Math.max(0, rows) }, (_, i) => [first + i, own.source.at(first + i)])
  return html`<${ErrorBox} error=${error} />
    <p class="dim">${loaded ? `Events: ${number(count)}` : 'Loading…'}</p>
    <div
      class="timeline"
      role="table"
      aria-label="Events, newest first"
      aria-rowcount=${count}
      tabindex="0"
      ref=${box}
      onScroll=${draw}
    >
      <div role="presentation" style=${{ height: `${all}px` }}>
        <div role="rowgroup" style=${{ transform: `translateY(${top}px)` }}>
          ${shown.map(
            ([i, e]) =>
              html`<div
                key=${i % 200}
                role="row"
                aria-rowindex=${i + 1}
                class=${e && chosen?.position === e.position ? 'chosen' : ''}
                onClick=${() => e && choose(e)}
              >
                <span role="cell"
                  >${e ? html`<button aria-label=${`Event ${e.position}`}>${e.position}</button>` : '…'}</span
                >
                <b role="cell">${e?.type}</b><span role="cell">${e?.subject}</span
                ><span role="cell">${e && html`<${Time} of=${e.time} />`}</span>
              </div>`,
          )}
        </div>
      </div>
    </div>`
}

// The history of a resource: its events with their causes and proofs, earlier states, and differences.

// eventsPath returns the path of the events that the key may read.
export const eventsPath = () => (can('operate') ? '/v1/events' : at('events'))

let logKey = '' // public key of the log, which the user gave

const marks = { true: '✓', false: '✗', null: '?' }

function Proof({ event }) {
  const [key, setKey] = useState(logKey)
  const [result, setResult] = useState(null)
  const run = async () => {
    logKey = key
    const bundle = await get(
      `${can('operate') ? '/v1/events' : `/v1/accounts/${event.subject.split('/')[1]}/events`}/${event.position}:prove`,
    )
    return { bundle, checks: await verify(bundle, event, key) }
  }
  return html`<div class="controls">
      <${Field} label="Key of the log" value=${key} set=${setKey} placeholder="as 'anneal log key' prints it" />
      <${Action} run=${run} done=${setResult}>Verify the proof in this browser<//>
    </div>
    ${
      result &&
      html`<ul class="checks" role="status">
          ${result.checks.map(
            (c) =>
              html`<li class=${c.ok === false ? 'failed' : ''}>
                ${marks[c.ok]} ${c.what}${c.ok === false && ': this is not so'}
              </li>`,
          )}
        </ul>
        <details><summary>Proof</summary><${Json} of=${result.bundle} /></details>`
    }`
}

const Chain = ({ of: chain, choose }) =>
  html`<${Table}
    label="Causes"
    head=${['Position', 'Event', 'Resource', 'Actor', 'Led to the next as']}
    rows=${chain.map(({ event: e, relation }) => [
      html`<button onClick=${() => choose(e)}>${e.position}</button>`,
      e.type,
      e.subject.split('/').slice(2).join('/'),
      e.actor,
      relation,
    ])}
  />`

const Differences = ({ of: fields }) =>
  html`<${Table} head=${['Field', 'Before', 'After']} rows=${fields} empty="The states are equal." />`

// changeOf returns the differences of a resource between two positions or times.
export async function changeOf(name, from, to, signal) {
  const [before, after] = await Promise.all([stateAt(name, from, signal), stateAt(name, to, signal)])
  return { before, after, fields: differences(before, after) }
}

// Detail shows an event: its data, what it changed, what led to it, and its proof.
export function Detail({ event, choose }) {
  const [chain, setChain] = useState(null)
  const [change, setChange] = useState(null)
  useEffect(() => {
    setChain(null)
    setChange(null)
  }, [event.position])
  return html`<section class="card" aria-label="Event">
    <h3>${event.type}, position ${event.position}</h3>
    <p class="dim">${event.subject} · ${event.actor || 'no actor'} · ${event.time}</p>
    <div class="controls">
      <${Action} run=${() => why(event, eventsPath())} done=${setChain}>Why?<//>
      ${
        can('read') &&
        html`<${Action}
          run=${() => changeOf(event.subject, Math.max(1, event.position - 1), event.position)}
          done=${setChange}
          >What it changed<//
        >`
      }
    </div>
    ${chain && html`<${Chain} of=${chain} choose=${choose} />`}
    ${
      change &&
      html`<${Differences} of=${change.fields} />
        <details>
          <summary>State after the event</summary>
          <${Json} of=${change.after} />
        </details>`
    }
    <${Json} of=${event} />
    <${Proof} key=${event.position} event=${event} />
  </section>`
}

// Earlier shows the state of a resource at a position or time, and what differs from another one.
function Earlier({ name }) {
  const [from, setFrom] = useState('')
  const [to, setTo] = useState('')
  const [change, setChange] = useState(null)
  return html`<div class="controls">
      <${Field} label="State at" value=${from} set=${setFrom} placeholder="position or time" />
      <${Field} label="Compared with" value=${to} set=${setTo} placeholder="now" />
      <${Action} run=${() => changeOf(name, from, to)} done=${setChange}>Show<//>
    </div>
    ${
      change &&
      html`<${Differences} of=${change.fields} />
        <details open>
          <summary>${from ? `State at ${from}` : 'State now'}</summary>
          ${change.before ? html`<${Json} of=${change.before} />` : html`<p>${idOf(name)} did not exist.</p>`}
        </details>`
    }`
}

// History shows the events of a resource and its earlier states.
export function History({ name }) {
  const [chosen, choose] = useState(null)
  return html`<${Earlier} name=${name} />
    <${Timeline}
      path=${`${at(name)}/events`}
      chosen=${chosen}
      choose=${choose}
    />
    ${chosen && html`<${Detail} event=${chosen} choose=${choose} />`}`
}
