// Kinds of jobs.
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

// baseOf returns the model that a job trains.
export const baseOf = (job) => job.baseModel || job.trainingConfig?.baseModel || job.warmStartFrom || ''
