// Search finds resources of all kinds by their name. Ctrl-K or ⌘K opens it.
import { html, render, useEffect, useRef, useState } from '/console/vendor/htm-preact.js'
import { all, at, can, events, get, isToken, jobKinds, logInAgain } from '/console/client.js'
import { lookAt, query, session, signIn, signOut } from '/console/client.js'
import { ErrorBox, Guard, focusMain, idOf, useLoaded, useRoute } from '/console/ui.js'
import { forget } from '/console/screens/load.js'
import { Home } from '/console/screens/home.js'
import { Playground } from '/console/screens/playground.js'
import { Job, Jobs } from '/console/screens/jobs.js'
import { NewJob } from '/console/screens/new_job.js'
import { Deployment, Deployments, NewDeployment } from '/console/screens/deployments.js'
import { Dataset, Datasets, Evaluator, Evaluators, Model, Models } from '/console/screens/resources.js'
import { Cluster, Keys, Quotas, Secrets, Usage } from '/console/screens/admin.js'
import { Events } from '/console/screens/events.js'

const places = [
  ...jobKinds.map((k) => ({
    collection: k.collection,
    title: k.title,
    link: (n) => `#/jobs/${k.short}/${idOf(n)}`,
  })),
  { collection: 'deployments', title: 'Deployment', link: (n) => `#/deployments/${idOf(n)}` },
  { collection: 'models', title: 'Model', link: (n) => `#/models/${idOf(n)}` },
  { collection: 'datasets', title: 'Dataset', link: (n) => `#/datasets/${idOf(n)}` },
  { collection: 'evaluators', title: 'Evaluator', link: (n) => `#/evaluators/${idOf(n)}` },
]

async function find(text, signal) {
  const filter = `name:${JSON.stringify(text)}`
  const found = await Promise.all(
    places.map(async (p) => {
      const page = await get(at(p.collection) + query({ filter, pageSize: 5, readMask: 'name' }), { signal })
      return (page[p.collection] || []).map(({ name }) => ({ title: p.title, name, link: p.link(name) }))
    }),
  )
  return found.flat()
}

export function Search() {
  const [text, setText] = useState('')
  const [found, setFound] = useState([])
  const [chosen, setChosen] = useState(0)
  const input = useRef()
  useEffect(() => {
    const open = (e) => {
      if ((e.metaKey || e.ctrlKey) && e.key === 'k') {
        e.preventDefault()
        input.current.focus()
      }
    }
    addEventListener('keydown', open)
    return () => removeEventListener('keydown', open)
  }, [])
  useEffect(() => {
    setChosen(0)
    if (!text.trim()) return setFound([])
    const abort = new AbortController()
    const timer = setTimeout(() => find(text.trim(), abort.signal).then(setFound, () => {}), 150)
    return () => {
      clearTimeout(timer)
      abort.abort()
    }
  }, [text])
  const close = () => {
    setText('')
    input.current.blur()
  }
  const key = (e) => {
    if (e.key === 'Escape') close()
    if (e.key === 'ArrowDown') setChosen(Math.min(chosen + 1, found.length - 1))
    if (e.key === 'ArrowUp') setChosen(Math.max(chosen - 1, 0))
    if (e.key === 'Enter' && found[chosen]) {
      location.hash = found[chosen].link
      close()
    }
    if (e.key.startsWith('Arrow')) e.preventDefault()
  }
  return html`<div class="search">
    <input
      ref=${input}
      type="search"
      role="combobox"
      aria-label="Search resources"
      aria-expanded=${found.length > 0}
      aria-controls="found"
      placeholder="Search (Ctrl-K)"
      value=${text}
      aria-activedescendant=${found[chosen] ? `found-${chosen}` : null}
      onInput=${(e) => setText(e.target.value)}
      onKeyDown=${key}
    />
    <ul id="found" role="listbox" aria-label="Found resources" hidden=${!found.length}>
      ${found.map(
        (f, i) =>
          html`<li id=${`found-${i}`} role="option" aria-selected=${i === chosen}>
            <a tabindex="-1" href=${f.link} onClick=${close}><small>${f.title}</small> ${idOf(f.name)}</a>
          </li>`,
      )}
    </ul>
  </div>`
}

// listOr returns a screen that shows a resource if the route names one, and the list otherwise.
const listOr = (One, Many) => (p) => (p.rest.length ? html`<${One} ...${p} />` : html`<${Many} />`)

// Screens by the first part of the route. needs is the permission without which a screen is not offered.
const screens = {
  '': { title: 'Home', needs: 'read', show: Home },
  playground: { title: 'Playground', needs: 'infer', show: Playground },
  jobs: { title: 'Jobs', needs: 'read', show: listOr(Job, Jobs) },
  'new-job': { title: 'New job', needs: 'write', show: NewJob, hidden: true },
  deployments: { title: 'Deployments', needs: 'read', show: listOr(Deployment, Deployments) },
  'new-deployment': { title: 'New deployment', needs: 'write', show: NewDeployment, hidden: true },
  models: { title: 'Models', needs: 'read', show: listOr(Model, Models) },
  datasets: { title: 'Datasets', needs: 'read', show: listOr(Dataset, Datasets) },
  evaluators: { title: 'Evaluators', needs: 'read', show: listOr(Evaluator, Evaluators) },
  usage: { title: 'Usage', needs: 'read', show: Usage },
  quotas: { title: 'Quotas', needs: 'read', show: Quotas },
  secrets: { title: 'Secrets', needs: 'keys', show: Secrets },
  keys: { title: 'API keys', needs: 'keys', show: Keys },
  cluster: { title: 'Cluster', needs: 'operate', show: Cluster },
  events: { title: 'Events', needs: 'events', show: Events },
}

// Accounts lets the operator choose the account whose resources the screens show.
function Accounts({ changed }) {
  const { value } = useLoaded(
    (signal) => all('/v1/accounts', 'accounts', { orderBy: 'name' }, signal),
    [],
    (e) => /^accounts\/[^/]*$/.test(e.subject),
  )
  const ids = [...new Set([session.account, ...(value || []).map((a) => idOf(a.name))])]
  const choose = (e) => {
    lookAt(e.target.value)
    changed()
  }
  return html`<select aria-label="Account" value=${session.account} onChange=${choose}>
    ${ids.map((id) => html`<option value=${id} selected=${id === session.account}>${id}</option>`)}
  </select>`
}

function SignIn({ done, reason }) {
  const [key, setKey] = useState('')
  const [error, setError] = useState(null)
  const [busy, setBusy] = useState(false)
  const [issuers, setIssuers] = useState()
  useEffect(() => {
    get('/.well-known/oauth-protected-resource').then((r) => setIssuers(r.authorization_servers), () => {})
  }, [])
  const submit = async (e) => {
    e.preventDefault()
    setBusy(true)
    try {
      await signIn(key.trim())
      done()
    } catch (e) {
      setError(e)
      setBusy(false)
    }
  }
  return html`<main class="sign-in">
    <form onSubmit=${submit}>
      <h1>anneal</h1>
      <label
        >API key
        <input
          type="password"
          autofocus
          required
          autocomplete="off"
          value=${key}
          onInput=${(e) => setKey(e.target.value)}
          placeholder="ank_…"
      /></label>
      <p class="hint">
        The file <code>context.json</code> in the server's data directory has a key of the account
        <code>default</code>. The key stays in this tab.
      </p>
      <${ErrorBox} error=${error || reason} />
      <button class="primary" disabled=${busy}>${busy ? 'Signing in…' : 'Sign in'}</button>
      ${
        issuers &&
        html`<a href="/oidc/login" onClick=${() => sessionStorage.setItem('anneal.return', location.hash)}
          >Sign in at ${new URL(issuers[0]).host}</a
        >`
      }
    </form>
  </main>`
}

const lastMinute = 60e3 // how long before the end of a login the page says so, in milliseconds

// Connection says that the connection is lost, or that the login at the identity provider ends. A login can be
// repeated without losing what the page shows.
function Connection() {
  const [connected, setConnected] = useState(true)
  const [login, setLogin] = useState('') // empty, soon or ended
  const [error, setError] = useState(null)
  useEffect(() => events.on((event) => event || setConnected(events.connected)), [])
  useEffect(() => {
    session.ended = () => setLogin('ended')
    const check = () => {
      if (session.expires && Date.now() > session.expires - lastMinute) setLogin((l) => l || 'soon')
    }
    check()
    const timer = setInterval(check, 5000)
    return () => {
      clearInterval(timer)
      session.ended = null
    }
  }, [])
  const again = () => {
    setError(null)
    try {
      logInAgain(() => setLogin(''), setError)
    } catch (e) {
      setError(e)
    }
  }
  if (login) {
    return html`<div class="banner" role="alert">
        ${login === 'soon' ? 'Your login ends soon.' : 'Your login has ended. The page continues after the next one.'}
        ${' '}<button onClick=${again}>Log in again</button>
      </div>
      <${ErrorBox} error=${error} />`
  }
  return connected ? null : html`<div class="banner" role="status">Connection lost. Reconnecting…</div>`
}

function Shell({ leave }) {
  const offered = Object.entries(screens).filter(([, s]) => !s.hidden && can(s.needs))
  const [first = offered[0][0], ...rest] = useRoute()
  const [open, setOpen] = useState(false)
  const [round, setRound] = useState(0) // changes when another account is chosen
  const screen = screens[first]
  useEffect(() => {
    document.title = `${screen?.title || 'Not found'} · anneal`
    setOpen(false)
    focusMain()
  }, [first, rest.join('/')])
  return html` <a
      class="skip"
      href="#main"
      onClick=${(e) => {
        e.preventDefault()
        focusMain(true)
      }}
      >Skip to content</a
    >
    <header>
      <button class="menu" aria-label="Menu" aria-expanded=${open} onClick=${() => setOpen(!open)}>☰</button>
      <a class="brand" href="#/">anneal</a>
      ${can('read') && html`<${Search} />`}
      ${can('operate') && html`<${Accounts} changed=${() => setRound(round + 1)} />`}
      <span class="who" title="account and role of the key">${session.account} · ${session.role}</span>
      <button onClick=${leave}>Sign out</button>
    </header>
    <${Connection} />
    <div class="body">
      <nav class=${open ? 'open' : ''} aria-label="Screens">
        ${offered.map(
          ([path, s]) =>
            html`<a key=${path} href=${`#/${path}`} aria-current=${path === first ? 'page' : null}>${s.title}</a>`,
        )}
        <a href="/docs" target="_blank" rel="noopener">API reference</a>
      </nav>
      <main id="main" tabindex="-1">
        ${
          !screen
            ? html`<h1>Not found</h1>
                <p>There is no screen of this name.</p>`
            : !can(screen.needs)
              ? html`<h1>${screen.title}</h1>
                  <p>The role ${session.role} does not permit this.</p>`
              : html`<${Guard} key=${[round, first, ...rest].join('/')}><${screen.show} rest=${rest} /><//>`
        }
      </main>
    </div>`
}

function App() {
  const [state, setState] = useState(session.key ? 'checking' : 'out')
  const [reason, setReason] = useState(null) // why the user must sign in again
  useEffect(() => {
    if (state === 'checking') {
      const login = isToken(session.key)
      signIn(session.key).then(
        () => setState('in'),
        (e) => {
          if (e.status === 401) signOut()
          setReason(e.status === 401 && login ? new Error('your login has ended') : e)
          setState('out')
        },
      )
    }
  }, [])
  const enter = () => {
    setReason(null)
    setState('in')
  }
  const leave = () => {
    session.revoked = null
    signOut()
    forget()
    setState('out')
  }
  const press = () => {
    leave()
    location.hash = '#/'
  }
  session.revoked = () => {
    leave() // the address stays, for the next key
    setReason(new Error('the server refuses the key: it was deleted or has expired'))
  }
  if (state === 'checking') return html`<p class="loading">Loading…</p>`
  return state === 'in' ? html`<${Shell} leave=${press} />` : html`<${SignIn} reason=${reason} done=${enter} />`
}

const root = document.getElementById('app')
root.textContent = ''
render(html`<${App} />`, root)
