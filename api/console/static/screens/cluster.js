import { html } from '/console/vendor/htm-preact.js'
import { at, get, post, query } from '/console/client.js'
import { Action, ErrorBox, State, Time, idOf, mib, useLoaded } from '/console/ui.js'

// cells returns a cell for each device of a node: what runs on it, or null when it is free.
function cells(node) {
  const devices = Object.entries(node.capacity?.accelerators || {}).flatMap(([type, n]) =>
    Array(Number(n)).fill(type),
  )
  const taken = (node.allocations || []).flatMap((a) =>
    Object.entries(a.takes?.accelerators || {}).flatMap(([type, n]) => Array(Number(n)).fill({ type, for: a.for })),
  )
  return devices.map((type) => {
    const i = taken.findIndex((t) => t.type === type)
    return { type, for: i < 0 ? null : taken.splice(i, 1)[0].for }
  })
}

const share = (used = 0, all = 0) => (all ? Math.round((100 * used) / all) : 0)

function Meter({ title, used, all, show }) {
  return html`<div class="meter">
    <span>${title}</span><meter min="0" max="100" high="90" value=${share(used, all)} aria-label=${title}></meter>
    <span>${show(used || 0)} of ${show(all || 0)}</span>
  </div>`
}

function Node({ node: n }) {
  const cordoned = n.scheduling && n.scheduling !== 'SCHEDULABLE'
  const all = cells(n)
  return html`<article class="node">
    <h2>${idOf(n.name)}</h2>
    <${State} of=${n.state} /> ${cordoned && html`<${State} of=${n.scheduling} />`}
    <small class="dim">seen <${Time} of=${n.seenTime} /></small>
    <${Meter} title="CPU" used=${n.used?.cpuMilli} all=${n.capacity?.cpuMilli} show=${(v) => `${v / 1000}`} />
    <${Meter} title="Memory" used=${n.used?.memoryMib} all=${n.capacity?.memoryMib} show=${mib} />
    ${
      all.length > 0 &&
      html`<div class="devices" role="list" aria-label="Devices">
        ${all.map(
          (c) =>
            html`<span
              role="listitem"
              class=${c.for ? 'device taken' : 'device'}
              title=${`${c.type}: ${c.for || 'free'}`}
              >${c.for ? idOf(c.for) : 'free'}</span
            >`,
        )}
      </div>`
    }
    <ul class="allocations">
      ${(n.allocations || []).map((a) => html`<li>${a.for?.split('/').slice(1).join('/')}</li>`)}
    </ul>
    ${n.status?.message && html`<p>${n.status.message}</p>`}
    ${
      cordoned
        ? html`<${Action} run=${() => post(`${at(n.name)}:uncordon`)}>Uncordon<//>`
        : html`<${Action} run=${() => post(`${at(n.name)}:cordon`)}>Cordon<//
            ><${Action} run=${() => post(`${at(n.name)}:drain`)} confirm="Move all work away?">Drain<//>`
    }
  </article>`
}

export function Cluster() {
  const { value, error } = useLoaded(
    async (signal) => {
      const [nodes, accounts] = await Promise.all([
        get(at('nodes') + query({ pageSize: 200, orderBy: 'name' }), { signal }),
        get(`/v1/accounts${query({ pageSize: 100 })}`, { signal }),
      ])
      return { nodes: nodes.nodes || [], accounts: accounts.accounts || [] }
    },
    [],
    (e) => /\/(nodes|deployments)\/|Jobs\/|^accounts\/[^/]*$/.test(e.subject),
  )
  if (!value)
    return html`<h1>Cluster</h1>
      <${ErrorBox} error=${error} />`
  return html`<h1>Cluster</h1>
    <${ErrorBox} error=${error} />
    ${!value.nodes.length && html`<p class="dim">No node has joined. Create a token with: anneal node token</p>`}
    <div class="nodes">${value.nodes.map((n) => html`<${Node} key=${n.name} node=${n} />`)}</div>
    <section>
      <h2>Accounts</h2>
      <div class="scroll">
        <table>
          <thead>
            <tr>
              <th scope="col">Account</th>
              <th scope="col">State</th>
              <th scope="col">Name</th>
              <th scope="col">Created</th>
            </tr>
          </thead>
          <tbody>
            ${value.accounts.map(
              (a) =>
                html`<tr key=${a.name}>
                  <td>${idOf(a.name)}</td>
                  <td><${State} of=${a.suspendState === 'UNSUSPENDED' ? a.state : a.suspendState} /></td>
                  <td>${a.displayName}</td>
                  <td><${Time} of=${a.createTime} /></td>
                </tr>`,
            )}
          </tbody>
        </table>
      </div>
    </section>`
}
