// Requests to the API with the key of this tab.


const keyName = 'anneal.key'
const accountName = 'anneal.account' // account that the operator looks at

export const session = {
  get key() {
    return sessionStorage.getItem(keyName) || ''
  },
  set key(value) {
    value ? sessionStorage.setItem(keyName, value) : sessionStorage.removeItem(keyName)
  },
  account: '', // account of the key
  revoked: null, // called when the server refuses the key, because it was deleted or has expired
  ended: null, // called when a login at the identity provider has ended; requests then wait for the next login
  role: '', // role of the key in the account; operator for that of the operator
  name: '', // name of the key or of the user
  expires: 0, // when a login at the identity provider ends, in milliseconds; 0 for a key
}

// Latest position of the log in the responses so far. Each request asks for at least this position, because the
// next one can reach a control plane that has not followed the log so far.
let seen = 0

let renewal = null // {promise, resolve} of the requests that wait for a login; null if none does

// isToken reports whether a key is the ID token of a login at the identity provider.
export const isToken = (key) => key.startsWith('ey')

// APIError is an error response. violations has the fields at fault: [{field, description}].
export class APIError extends Error {
  constructor(status, body) {
    const inner = body?.error && typeof body.error === 'object' ? body.error : body || {}
    super(inner.message || `the server responded with status ${status}`)
    this.status = status
    const details = Array.isArray(inner.details) ? inner.details : []
    this.violations = details.flatMap((d) => d.fieldViolations || [])
    this.reason = details.map((d) => d.reason).find(Boolean) || ''
    this.requestId = details.map((d) => d.metadata?.requestId).find(Boolean) || body?.request_id || ''
  }
}

// request sends a request and returns the response, whose status is 2xx. A body that is neither a
// string nor FormData is sent as JSON.
export async function request(method, path, { body, signal, key = session.key, headers = {} } = {}) {
  const init = { method, signal, headers: { Authorization: `Bearer ${key}`, ...headers } }
  if (seen) init.headers['Anneal-At-Least'] = String(seen)
  if (body !== undefined) {
    const raw = typeof body === 'string' || body instanceof FormData
    init.body = raw ? body : JSON.stringify(body)
    if (!raw) init.headers['Content-Type'] = 'application/json'
  }
  const response = await fetch(path, init)
  if (response.status === 401 && key === session.key) {
    if (isToken(key) && session.ended) {
      session.ended()
      renewal ||= Promise.withResolvers()
      await renewal.promise
      return request(method, path, { body, signal, headers })
    }
    session.revoked?.()
  }
  if (response.ok) {
    seen = Math.max(seen, Number(response.headers.get('Anneal-Position')) || 0)
    return response
  }
  const error = new APIError(response.status, await response.json().catch(() => null))
  if (error.reason === 'POSITION_NOT_REACHED') seen = 0 // the log was restored to an earlier state
  throw error
}

const json = async (method, path, options) => {
  const text = await (await request(method, path, options)).text()
  return text ? JSON.parse(text) : {}
}

export const get = (path, options) => json('GET', path, options)
export const post = (path, body, options) => json('POST', path, { body, ...options })
export const patch = (path, body, options) => json('PATCH', path, { body, ...options })
export const remove = (path, options) => json('DELETE', path, options)

// at returns the path of a resource, or of a collection of the key's account.
export function at(name) {
  if (!name.split('/').every((part) => /^[A-Za-z0-9][\w-]*$/.test(part))) throw new Error(`${name} is not a name`)
  return name.startsWith('accounts/') ? `/v1/${name}` : `/v1/accounts/${session.account}/${name}`
}

// textAt returns the text of a response.
export const textAt = async (path, signal) => (await request('GET', path, { signal })).text()

// all returns the items of all pages of a list, at most limit of them.
export async function all(path, items, parameters, signal, limit = 2000) {
  const found = []
  for (let pageToken = ''; ; ) {
    const page = await get(path + query({ pageSize: 200, ...parameters, pageToken }), { signal })
    found.push(...(page[items] || []))
    pageToken = page.nextPageToken
    if (!pageToken || found.length >= limit) return found
  }
}

// fileOf returns the response of a signed URL; null if there is no file. The page may only read files of its
// own server, whose address may have another host name in the URL.
export async function fileOf(signedUrl, signal) {
  const { pathname, search } = new URL(signedUrl)
  if (!pathname.startsWith('/blobs/')) {
    throw new Error('the file is in an object store, which this page may not read: use the command line')
  }
  const response = await fetch(pathname + search, { signal })
  if (!response.ok && response.status !== 404) throw new Error(`the file cannot be read: status ${response.status}`)
  return response.ok ? response : null
}

// quoted returns a text as a word of a shell command.
export const quoted = (text) => (/^[\w./:@=-]+$/.test(text) ? text : `'${String(text).replaceAll("'", "'\\''")}'`)

// query returns a query string of the parameters that are not empty.
export function query(parameters) {
  const q = new URLSearchParams(Object.entries(parameters).filter(([, v]) => v !== '' && v != null))
  return q.size ? `?${q}` : ''
}

// signIn checks an API key or an ID token, and sets the session.
export async function signIn(key) {
  const { name, account, role, operator, expireTime } = await get('/v1/caller', { key })
  session.key = key
  session.name = name
  session.expires = isToken(key) ? Date.parse(expireTime) : 0
  session.account = account
  session.role = operator ? 'operator' : role
  if (operator) session.account = sessionStorage.getItem(accountName) || account
}

let channel = null // on which the window of a login sends its token

// logInAgain opens a window for another login of the same user. The page stays as it is, and requests that wait
// continue. done() is called afterwards, failed(error) if the login permits nothing.
export function logInAgain(done, failed) {
  channel?.close()
  const id = [...crypto.getRandomValues(new Uint32Array(4))].map((n) => n.toString(36)).join('-')
  const opened = open(`/oidc/login?renew=${id}`, '_blank', 'popup,width=500,height=700')
  if (!opened) throw new Error('the browser has blocked the window of the login: permit pop-up windows of this page')
  opened.opener = null // the pages of the provider cannot reach this one
  channel = new BroadcastChannel(id)
  channel.onmessage = async ({ data }) => {
    channel.postMessage('') // the window may close
    const { name, role } = session
    try {
      await signIn(data)
    } catch (e) {
      return failed(e)
    }
    // another user gets a new page, without what this one has entered
    if (session.name !== name || session.role !== role) return location.reload()
    renewal?.resolve()
    renewal = null
    done()
  }
}

// lookAt changes the account whose resources the operator sees.
export function lookAt(account) {
  sessionStorage.setItem(accountName, account)
  session.account = account
}

// can reports whether the role of the key permits a group of operations: 'read', 'write', 'events', 'infer',
// 'keys' or 'operate'.
export function can(what) {
  const permitted = {
    operator: 'read write events infer keys operate',
    admin: 'read write events infer keys',
    user: 'read write events infer',
    inference: 'infer',
    reader: 'events',
  }
  return (permitted[session.role] || '').split(' ').includes(what)
}

// lines yields the lines of a response as they arrive.
export async function* lines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader()
  let rest = ''
  try {
    for (;;) {
      const { value, done } = await reader.read()
      if (done) break
      const parts = (rest + value).split('\n')
      rest = parts.pop()
      yield* parts
    }
    if (rest) yield rest
  } finally {
    reader.cancel().catch(() => {})
  }
}

// EventSource cannot send a key, so the stream of events is read with fetch.
class Follower {
  listeners = new Set()
  last = ''
  connected = false

  // on calls listener(event) for each new event, and listener(null) when the connection changes. It
  // returns a function that ends the calls.
  on(listener) {
    this.listeners.add(listener)
    if (this.listeners.size === 1 && !this.abort && can('events')) this.run()
    return () => this.listeners.delete(listener)
  }

  stop() {
    this.abort?.abort()
    this.abort = null
    this.last = ''
  }

  async run() {
    const abort = (this.abort = new AbortController())
    for (let pause = 500; !abort.signal.aborted; pause = Math.min(2 * pause, 10000)) {
      try {
        const headers = { Accept: 'text/event-stream' }
        if (this.last) headers['Last-Event-ID'] = this.last
        const path = can('operate') ? '/v1/events' : at('events')
        const response = await request('GET', path, { headers, signal: abort.signal })
        this.connect(true)
        pause = 500
        for await (const line of lines(response)) {
          if (line.startsWith('id: ')) this.last = line.slice(4)
          if (line.startsWith('data: ')) this.tell(JSON.parse(line.slice(6)))
        }
      } catch (e) {
        if (abort.signal.aborted) break
        if (e.status === 401) return
      }
      this.connect(false)
      await new Promise((resolve) => setTimeout(resolve, pause))
    }
  }

  connect(connected) {
    if (this.connected !== connected) {
      this.connected = connected
      this.tell(null)
    }
  }

  tell(event) {
    for (const listener of [...this.listeners]) listener(event)
  }
}

export const events = new Follower()

// signOut forgets the key.
export function signOut() {
  events.stop()
  events.connected = false
  sessionStorage.removeItem(accountName)
  session.key = session.account = session.role = session.name = ''
  session.expires = 0
  session.ended = renewal = null
  channel?.close()
}

// Kinds of jobs, and models for them.

export const jobKinds = [
  { short: 'sft', collection: 'supervisedFineTuningJobs', title: 'Supervised', id: 'supervisedFineTuningJobId' },
  { short: 'dpo', collection: 'dpoJobs', title: 'DPO', id: 'dpoJobId' },
  {
    short: 'rft',
    collection: 'reinforcementFineTuningJobs',
    title: 'Reinforcement',
    id: 'reinforcementFineTuningJobId',
  },
  { short: 'rlor', collection: 'rlorTrainerJobs', title: 'Trainer', id: 'rlorTrainerJobId' },
]

export const kindOf = (short) => jobKinds.find((k) => k.short === short)

// live are the states of jobs that have not ended.
export const live = [
  'CREATING',
  'VALIDATING',
  'PENDING',
  'RUNNING',
  'WRITING_RESULTS',
  'RE_QUEUEING',
  'CREATING_INPUT_DATASET',
  'IDLE',
  'CANCELLING',
].map((s) => `JOB_STATE_${s}`)

// readableModels returns the models that an account may use, {name, kind, state}: its own, and public ones of
// others.
export async function readableModels(signal) {
  const [own, all] = await Promise.all([
    get(at('models') + query({ pageSize: 200, orderBy: 'createTime desc' }), { signal }),
    get('/inference/v1/models', { signal }),
  ])
  const models = own.models || []
  const others = all.data.filter((m) => m.id.startsWith('accounts/') && !models.some((o) => o.name === m.id))
  return [...models, ...others.map((m) => ({ name: m.id, kind: m.kind, state: 'READY' }))]
}

// baseOf returns the model that a job trains.
export const baseOf = (job) => job.baseModel || job.trainingConfig?.baseModel || job.warmStartFrom || ''
