// Charts of metrics. Each chart has a table with the same numbers.
import { html, useEffect, useRef, useState } from '/console/vendor/htm-preact.js'

const colors = ['#b4451f', '#1f6fb4', '#2f8f4e', '#8a4fbf', '#a67c00', '#c2337a', '#00818a', '#6b6b6b']

// smooth returns the exponential moving average of values, which may have gaps. weight is from 0 to below 1.
export function smooth(values, weight) {
  let last = null
  return values.map((v) => {
    if (v == null || !weight) return v
    last = last == null ? v : weight * last + (1 - weight) * v
    return last
  })
}

// aligned returns uPlot's data of lines, each {label, points: [[x, y]]}: the union of their x, and a list
// of y for each line.
export function aligned(lines) {
  const xs = [...new Set(lines.flatMap((l) => l.points.map(([x]) => x)))].sort((a, b) => a - b)
  return [
    xs,
    ...lines.map((l) => {
      const by = new Map(l.points)
      return xs.map((x) => by.get(x) ?? null)
    }),
  ]
}

// Chart draws lines, each {label, points: [[x, y]]}.
export function Chart({ title, lines, x = 'step', weight = 0, log = false, sync = 'metrics' }) {
  const place = useRef()
  const [table, setTable] = useState(false)
  const data = aligned(lines)
  const shown = [data[0], ...data.slice(1).map((v) => smooth(v, weight))]
  useEffect(() => {
    const css = getComputedStyle(document.documentElement)
    const axis = {
      stroke: css.getPropertyValue('--text'),
      grid: { stroke: css.getPropertyValue('--line'), width: 1 },
    }
    const chart = new uPlot(
      {
        width: place.current.clientWidth || 320,
        height: 220,
        cursor: { sync: { key: sync } },
        scales: { x: { time: x === 'time' }, y: { distr: log ? 3 : 1 } },
        axes: [axis, { ...axis, size: 60 }],
        series: [
          { label: x },
          ...lines.map((l, i) => ({
            label: l.label,
            stroke: colors[i % colors.length],
            width: 1.5,
            spanGaps: true,
            points: { show: l.points.length < 30 },
          })),
        ],
      },
      shown,
      place.current,
    )
    const resize = new ResizeObserver(() => chart.setSize({ width: place.current.clientWidth, height: 220 }))
    resize.observe(place.current)
    return () => {
      resize.disconnect()
      chart.destroy()
    }
  }, [JSON.stringify(data), weight, log, x])
  const rows = table ? data[0].map((at, i) => [at, ...data.slice(1).map((v) => v[i])]) : []
  return html`<figure class="chart">
    <figcaption>${title}</figcaption>
    <div ref=${place}></div>
    <details onToggle=${(e) => setTable(e.target.open)}>
      <summary>Table</summary>
      <div class="scroll">
        <table>
          <thead>
            <tr>
              <th scope="col">${x}</th>
              ${lines.map((l) => html`<th scope="col">${l.label}</th>`)}
            </tr>
          </thead>
          <tbody>
            ${rows.map(
              (r) =>
                html`<tr>
                  ${r.map((v) => html`<td class="number">${v ?? ''}</td>`)}
                </tr>`,
            )}
          </tbody>
        </table>
      </div>
    </details>
  </figure>`
}

// csvOf returns rows of metrics as CSV with a header.
export function csvOf(rows) {
  const names = [...new Set(rows.flatMap(Object.keys))]
  const cell = (v) => (v == null ? '' : /[",\n]/.test(v) ? `"${String(v).replaceAll('"', '""')}"` : String(v))
  return [names.join(','), ...rows.map((r) => names.map((n) => cell(r[n])).join(','))].join('\n') + '\n'
}
