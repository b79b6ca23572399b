import { html, render, useEffect, useState } from '/console/vendor/htm-preact.js'
import { can, events, session, signIn, signOut } from '/console/client.js'
import { ErrorBox, Guard, focusMain, useRoute } from '/console/ui.js'
import { Search } from '/console/search.js'
import { Home } from '/console/screens/home.js'
import { Playground } from '/console/screens/playground.js'
import { Jobs } from '/console/screens/jobs.js'
import { Job } from '/console/screens/job.js'
import { NewJob } from '/console/screens/new_job.js'
import { Deployment, Deployments, NewDeployment } from '/console/screens/deployments.js'
import { Dataset, Datasets, Evaluators, Models } from '/console/screens/resources.js'
import { Keys, Quotas, Usage } from '/console/screens/account.js'
import { Cluster } from '/console/screens/cluster.js'
import { Events } from '/console/screens/events.js'

// Screens by the first part of the route. needs is the permission without which a screen is not offered.
const screens = {
  '': { title: 'Home', needs: 'read', show: Home },
  playground: { title: 'Playground', needs: 'infer', show: Playground },
  jobs: {
    title: 'Jobs',
    needs: 'read',
    show: (p) => (p.rest.length ? html`<${Job} ...${p} />` : html`<${Jobs} />`),
  },
  'new-job': { title: 'New job', needs: 'write', show: NewJob, hidden: true },
  deployments: {
    title: 'Deployments',
    needs: 'read',
    show: (p) => (p.rest.length ? html`<${Deployment} ...${p} />` : html`<${Deployments} />`),
  },
  'new-deployment': { title: 'New deployment', needs: 'write', show: NewDeployment, hidden: true },
  models: { title: 'Models', needs: 'read', show: Models },
  datasets: {
    title: 'Datasets',
    needs: 'read',
    show: (p) => (p.rest.length ? html`<${Dataset} ...${p} />` : html`<${Datasets} />`),
  },
  evaluators: { title: 'Evaluators', needs: 'read', show: Evaluators },
  usage: { title: 'Usage', needs: 'read', show: Usage },
  quotas: { title: 'Quotas', needs: 'read', show: Quotas },
  keys: { title: 'API keys', needs: 'keys', show: Keys },
  cluster: { title: 'Cluster', needs: 'operate', show: Cluster },
  events: { title: 'Events', needs: 'events', show: Events },
}

function SignIn({ done, reason }) {
  const [key, setKey] = useState('')
  const [error, setError] = useState(null)
  const [busy, setBusy] = useState(false)
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
    </form>
  </main>`
}

function Connection() {
  const [connected, setConnected] = useState(true)
  useEffect(() => events.on((event) => event || setConnected(events.connected)), [])
  return connected ? null : html`<div class="banner" role="status">Connection lost. Reconnecting…</div>`
}

function Shell({ leave }) {
  const offered = Object.entries(screens).filter(([, s]) => !s.hidden && can(s.needs))
  const [first = offered[0][0], ...rest] = useRoute()
  const [open, setOpen] = useState(false)
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
              : html`<${Guard} key=${first + '/' + rest.join('/')}><${screen.show} rest=${rest} /><//>`
        }
      </main>
    </div>`
}

function App() {
  const [state, setState] = useState(session.key ? 'checking' : 'out')
  const [reason, setReason] = useState(null) // why the user must sign in again
  useEffect(() => {
    if (state === 'checking') {
      signIn(session.key).then(
        () => setState('in'),
        (e) => {
          if (e.status === 401) signOut()
          setReason(e)
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
    location.hash = '#/'
    setState('out')
  }
  session.revoked = () => {
    leave()
    setReason(new Error('the server refuses the key: it was deleted or has expired'))
  }
  if (state === 'checking') return html`<p class="loading">Loading…</p>`
  return state === 'in' ? html`<${Shell} leave=${leave} />` : html`<${SignIn} reason=${reason} done=${enter} />`
}

const root = document.getElementById('app')
root.textContent = ''
render(html`<${App} />`, root)
