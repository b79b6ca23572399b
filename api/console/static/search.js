// Search finds resources of all kinds by their name. Ctrl-K or ⌘K opens it.
import { html, useEffect, useRef, useState } from '/console/vendor/htm-preact.js'
import { at, get, query } from '/console/client.js'
import { idOf } from '/console/ui.js'
import { jobKinds } from '/console/kinds.js'

const places = [
  ...jobKinds.map((k) => ({
    collection: k.collection,
    title: k.title,
    link: (n) => `#/jobs/${k.short}/${idOf(n)}`,
  })),
  { collection: 'deployments', title: 'Deployment', link: (n) => `#/deployments/${idOf(n)}` },
  { collection: 'models', title: 'Model', link: (n) => `#/models?filter=${encodeURIComponent(`name = "${n}"`)}` },
  { collection: 'datasets', title: 'Dataset', link: (n) => `#/datasets/${idOf(n)}` },
  {
    collection: 'evaluators',
    title: 'Evaluator',
    link: (n) => `#/evaluators?filter=${encodeURIComponent(`name = "${n}"`)}`,
  },
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
