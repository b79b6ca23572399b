// The list of a collection, with its columns.
import { html, useState } from '/console/vendor/htm-preact.js'
import { at, get, query } from '/console/client.js'
import { ErrorBox, FilterForm, Pager, State, Time, useLoaded, usePages, useParameter } from '/console/ui.js'

// Columns that several lists have.
export const stateColumn = { title: 'State', show: (r) => html`<${State} of=${r.state} />`, order: 'state' }
export const createdColumn = {
  title: 'Created',
  show: (r) => html`<${Time} of=${r.createTime} />`,
  order: 'createTime',
}

// fieldsOf returns the values of a resource that are no objects or lists, by the dotted paths of their fields.
function fieldsOf(value, path = '', into = {}) {
  if (value && typeof value === 'object') {
    if (Array.isArray(value)) return into
    for (const [k, v] of Object.entries(value)) fieldsOf(v, path ? `${path}.${k}` : k, into)
  } else if (!/SignedUr[il]$/i.test(path)) into[path] = value
  return into
}

// fieldColumn returns a column with the value of a field.
const fieldColumn = (field) => ({
  title: field,
  order: field,
  show: (r) => {
    const v = fieldsOf(r)[field]
    if (v === undefined || v === '') return ''
    if (/state$/i.test(field)) return html`<${State} of=${v} />`
    return /^\d{4}-\d\d-\d\dT/.test(v) ? html`<${Time} of=${v} />` : String(v)
  },
})

// useColumns returns the columns of a list that are shown, and a form that chooses them: those of the list, and the
// fields of its rows. The choice is kept in the browser, for each collection.
function useColumns(collection, own, rows) {
  const key = `anneal.columns.${collection}`
  const [chosen, setChosen] = useState(() => {
    try {
      return JSON.parse(localStorage.getItem(key))
    } catch {
      return null
    }
  })
  const titles = own.map((c) => c.title).filter(Boolean)
  const shown = Array.isArray(chosen) ? chosen : titles
  const orders = own.map((c) => c.order)
  const fields = [...new Set([...rows.flatMap((r) => Object.keys(fieldsOf(r))), ...shown])]
    .filter((f) => !titles.includes(f) && !orders.includes(f))
    .sort()
  const set = (to) => {
    setChosen(to)
    to ? localStorage.setItem(key, JSON.stringify(to)) : localStorage.removeItem(key)
  }
  const toggle = (title) => set(shown.includes(title) ? shown.filter((t) => t !== title) : [...shown, title])
  // the first column names the resource, and one without a title has actions: both stay
  const kept = own.filter((c, i) => !i || !c.title || shown.includes(c.title))
  const added = shown.filter((t) => fields.includes(t)).map(fieldColumn)
  const choice = html`<details class="choose">
    <summary>Columns</summary>
    <div class="controls" role="group" aria-label="Columns">
      ${[...titles.slice(1), ...fields].map(
        (title) =>
          html`<label key=${title}
            ><input type="checkbox" checked=${shown.includes(title)} onChange=${() => toggle(title)} /> ${title}</label
          >`,
      )}
      <button onClick=${() => set(null)}>Default columns</button>
    </div>
  </details>`
  return [[...kept.filter((c) => c.title), ...added, ...kept.filter((c) => !c.title)], choice]
}

// List shows a collection page by page. columns are {title, show(item), order}, where order is the field
// by which the column orders the list.
export function List({
  path,
  items,
  columns,
  link,
  empty,
  hint,
  initialOrder = 'createTime desc',
  size = 25,
  label,
}) {
  const [filter, setFilter] = useParameter('filter')
  const [order, setOrder] = useParameter('order', initialOrder)
  const pages = usePages(`${filter}\n${order}`)
  const collection = path.split('/').pop()
  const { value, error, loading } = useLoaded(
    (signal) => get(
        (path.startsWith('/') ? path : at(path)) +
          query({ filter, orderBy: order, pageSize: size, pageToken: pages.token }),
        { signal },
      ),
    [path, filter, order, pages.token],
    (e) => e.subject.includes(`/${collection}/`) || (collection === 'accounts' && e.subject.split('/').length === 2),
  )
  const rows = value?.[items] || []
  const [shown, choice] = useColumns(collection, columns, rows)
  const sort = (field) => setOrder(order === field ? `${field} desc` : field)
  return html`<section class="list" aria-label=${label || items}>
    <${FilterForm} filter=${filter} setFilter=${setFilter} hint=${hint || 'displayName:"text"'}
      fields=${Object.keys(rows[0] || {})} />
    ${choice}
    <${ErrorBox} error=${error} />
    <div class="scroll" tabindex="0">
      <table>
        <thead>
          <tr>
            ${shown.map(
              (c) =>
                html`<th
                  scope="col"
                  aria-sort=${
                    c.order && order.split(' ')[0] === c.order
                      ? order.endsWith(' desc')
                        ? 'descending'
                        : 'ascending'
                      : null
                  }
                >
                  ${
                    c.order
                      ? html`<button onClick=${() => sort(c.order)}>
                          ${c.title}${order === c.order ? ' ↑' : order === `${c.order} desc` ? ' ↓' : ''}
                        </button>`
                      : c.title
                  }
                </th>`,
            )}
          </tr>
        </thead>
        <tbody>
          ${rows.map(
            (item) =>
              html`<tr key=${item.name || item.position}>
                ${shown.map(
                  (c, i) =>
                    html`<td>
                      ${i === 0 && link ? html`<a href=${link(item)}>${c.show(item)}</a>` : c.show(item)}
                    </td>`,
                )}
              </tr>`,
          )}
        </tbody>
      </table>
    </div>
    ${!rows.length && !error && html`<p class="dim">
      ${loading ? 'Loading…' : filter ? 'Nothing matches the filter.' : empty}</p>`}
    <${Pager} pages=${pages} page=${value} />
  </section>`
}
