import { html } from '/console/vendor/htm-preact.js'
import { can } from '/console/client.js'
import { List, State, Time, idOf, useParameter } from '/console/ui.js'
import { baseOf, jobKinds, kindOf } from '/console/kinds.js'
import { Progress } from '/console/screens/home.js'

export function Jobs() {
  const [short, setShort] = useParameter('kind', 'sft')
  const kind = kindOf(short) || jobKinds[0]
  return html`<div class="title">
      <h1>Jobs</h1>
      ${can('write') && html`<a class="button primary" href="#/new-job">New job</a>`}
    </div>
    <div class="tabs" role="tablist" aria-label="Kinds of jobs">
      ${jobKinds.map(
        (k) =>
          html`<button role="tab" aria-selected=${k === kind} onClick=${() => setShort(k.short)}>
            ${k.title}
          </button>`,
      )}
    </div>
    <${List}
      key=${kind.short}
      path=${kind.collection}
      items=${kind.collection}
      hint="state = JOB_STATE_FAILED"
      link=${(j) => `#/jobs/${kind.short}/${idOf(j.name)}`}
      empty="There are no jobs of this kind."
      columns=${[
        { title: 'Job', show: (j) => idOf(j.name), order: 'name' },
        { title: 'State', show: (j) => html`<${State} of=${j.state} />`, order: 'state' },
        { title: 'Progress', show: (j) => html`<${Progress} of=${j.jobProgress} />` },
        { title: 'Base model', show: (j) => idOf(baseOf(j)) },
        {
          title: 'Dataset',
          show: (j) => j.dataset && html`<a href=${`#/datasets/${idOf(j.dataset)}`}>${idOf(j.dataset)}</a>`,
        },
        { title: 'Created', show: (j) => html`<${Time} of=${j.createTime} />`, order: 'createTime' },
      ]}
    />`
}
