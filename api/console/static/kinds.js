// Kinds of jobs, and models for them.
import { at, get, query } from '/console/client.js'

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
