// Runs batches through the openai package, as its documentation shows, and prints what the server
// said as one JSON object.
import OpenAI, { toFile } from 'openai'

const { BASE_URL, API_KEY, MODEL, PROMPT } = process.env
const client = new OpenAI({ baseURL: BASE_URL, apiKey: API_KEY, maxRetries: 0 })
const ended = new Set(['completed', 'failed', 'expired', 'cancelled'])
const url = '/v1/chat/completions'

const line = (custom_id, body) =>
  JSON.stringify({
    custom_id,
    method: 'POST',
    url,
    body: { model: MODEL, max_tokens: 8, messages: [{ role: 'user', content: PROMPT }], ...body },
  })
const upload = async (...lines) =>
  client.files.create({ file: await toFile(Buffer.from(lines.join('\n')), 'requests.jsonl'), purpose: 'batch' })
const create = (file, more) =>
  client.batches.create({ input_file_id: file.id, endpoint: url, completion_window: '24h', ...more })
const finish = async (batch) => {
  while (!ended.has(batch.status)) {
    await new Promise((resolve) => setTimeout(resolve, 100))
    batch = await client.batches.retrieve(batch.id)
  }
  return batch
}
const results = async (id) =>
  (await (await client.files.content(id)).text())
    .trim()
    .split('\n')
    .map((text) => JSON.parse(text))

const file = await upload(line('one'), line('two'), line('wrong', { temperature: 9 }))
const created = await create(file, { metadata: { team: 'orders' } })
const batch = await finish(created)
const answered = (await results(batch.output_file_id)).map((one) => one.custom_id).sort()
const errors = await results(batch.error_file_id)

const invalid = await finish(await create(await upload(line('one'), '{')))
const other = await create(await upload(...Array.from({ length: 1000 }, (_, i) => line(`r${i}`, { max_tokens: 64 }))))
const cancelled = await client.batches.cancel(other.id)
const refused = await create(file, { endpoint: '/v1/responses' }).catch((error) => error)
const missing = await client.batches.retrieve('batch-none').catch((error) => error)
const batches = []
for await (const one of client.batches.list({ limit: 1 })) batches.push(one.id)

const failure = (error) => ({
  kind: error.constructor.name,
  status: error.status,
  param: error.param,
  message: error.message,
})
console.log(
  JSON.stringify({
    file,
    created,
    batch,
    answered,
    failed: errors.map((one) => one.custom_id),
    status: errors[0].response.status_code,
    invalid,
    line: invalid.errors.data[0].line,
    cancelled: cancelled.status,
    refused: failure(refused),
    missing: failure(missing),
    batches,
  }),
)
