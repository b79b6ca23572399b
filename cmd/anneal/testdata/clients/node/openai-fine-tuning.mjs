// Fine-tunes the model through the openai package, as its documentation shows, chats with the
// result, and prints what the server said as one JSON object. The arguments are files with
// conversations and with rows that are no conversations.
import { createReadStream } from 'node:fs'
import OpenAI, { toFile } from 'openai'

const { BASE_URL, API_KEY, MODEL, PROMPT } = process.env
const client = new OpenAI({ baseURL: BASE_URL, apiKey: API_KEY, maxRetries: 0 })
const [, , rows, wrong] = process.argv
const ended = new Set(['succeeded', 'failed', 'cancelled'])

const file = await client.files.create({ file: createReadStream(rows), purpose: 'fine-tune' })
const processed = await client.files.waitForProcessing(file.id)
const content = await (await client.files.content(file.id)).text()
const rejected = await client.files
  .create({ file: createReadStream(wrong), purpose: 'fine-tune' })
  .catch((error) => error)
const purpose = await client.files
  .create({ file: await toFile(Buffer.from('{}'), 'a.jsonl'), purpose: 'vision' })
  .catch((error) => error)

const created = await client.fineTuning.jobs.create({
  model: MODEL,
  training_file: file.id,
  validation_file: file.id,
  suffix: 'packing',
  seed: 42,
  metadata: { team: 'orders' },
  method: {
    type: 'supervised',
    supervised: { hyperparameters: { n_epochs: 2, batch_size: 4, learning_rate_multiplier: 'auto' } },
  },
})
let job = created
while (!ended.has(job.status)) {
  await new Promise((resolve) => setTimeout(resolve, 200))
  job = await client.fineTuning.jobs.retrieve(created.id)
}
const events = []
for await (const event of client.fineTuning.jobs.listEvents(created.id, { limit: 5 })) events.push(event)
const checkpoints = []
for await (const checkpoint of client.fineTuning.jobs.checkpoints.list(created.id, { limit: 1 }))
  checkpoints.push(checkpoint)
const jobs = []
for await (const one of client.fineTuning.jobs.list({ limit: 1 })) jobs.push(one.id)
const chat = await client.chat.completions.create({
  model: job.fine_tuned_model,
  max_tokens: 24,
  temperature: 0,
  messages: [{ role: 'user', content: PROMPT }],
})

const other = await client.fineTuning.jobs.create({
  model: MODEL,
  training_file: file.id,
  hyperparameters: { n_epochs: 1000 },
})
const paused = await client.fineTuning.jobs.pause(other.id)
const cancelled = await client.fineTuning.jobs.cancel(other.id)
const refused = await client.fineTuning.jobs
  .create({
    model: MODEL,
    training_file: file.id,
    method: {
      type: 'reinforcement',
      reinforcement: { grader: { type: 'python', source: '' }, hyperparameters: { eval_samples: 3 } },
    },
  })
  .catch((error) => error)

const removed = await client.models.delete(job.fine_tuned_model)
const gone = await client.models.retrieve(job.fine_tuned_model).catch((error) => error)

const unused = await client.files.create({ file: createReadStream(rows), purpose: 'fine-tune' })
const deleted = await client.files.delete(unused.id)
const missing = await client.files.retrieve(unused.id).catch((error) => error)
const files = []
for await (const one of client.files.list({ limit: 1 })) files.push(one.id)

const failure = (error) => ({
  kind: error.constructor.name,
  status: error.status,
  param: error.param,
  message: error.message,
})
console.log(
  JSON.stringify({
    file,
    processed,
    content,
    rejected: failure(rejected),
    purpose: failure(purpose),
    created,
    job,
    events,
    checkpoints,
    jobs,
    chat: chat.choices[0].message.content,
    paused: paused.id === other.id && paused.status,
    cancelled: cancelled.status,
    refused: failure(refused),
    removed,
    gone: failure(gone),
    deleted,
    missing: failure(missing),
    files,
  }),
)
