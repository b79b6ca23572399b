// Requests responses, embeddings and a model through the openai package, and, from the second
// model, tool calls and structured output, and prints the results as one JSON object.
import OpenAI from 'openai'
import { zodResponsesFunction, zodTextFormat } from 'openai/helpers/zod'
import { order } from './order.mjs'

const { BASE_URL, API_KEY, MODEL, PROMPT } = process.env
const client = new OpenAI({ baseURL: BASE_URL, apiKey: API_KEY, maxRetries: 0 })
const settings = { model: MODEL, max_output_tokens: 24, temperature: 0, input: PROMPT }
const schema = order((field) => field.nullable())

const plain = await client.responses.create(settings)
const stream = client.responses.stream(settings)
const events = []
let deltas = ''
for await (const event of stream) {
  if (events.at(-1) !== event.type) events.push(event.type)
  if (event.type === 'response.output_text.delta') deltas += event.delta
}
const streamed = await stream.finalResponse()
const again = await client.responses.create({
  ...settings,
  input: [{ role: 'user', content: PROMPT }, ...plain.output, { role: 'user', content: PROMPT }],
})

const large = { ...settings, max_output_tokens: 400 }
const parsed = await client.responses.parse({ ...large, text: { format: zodTextFormat(schema, 'order') } })
const called = await client.responses.parse({
  ...large,
  model: process.argv[2],
  tools: [zodResponsesFunction({ name: 'place', parameters: schema })],
  tool_choice: { type: 'function', name: 'place' },
})
const call = called.output.find((item) => item.type === 'function_call')
const answered = await client.responses.create({
  ...settings,
  model: process.argv[2],
  input: [
    { role: 'user', content: PROMPT },
    call,
    { type: 'function_call_output', call_id: call.call_id, output: 'placed' },
  ],
})

const vectors = await client.embeddings.create({ model: MODEL, input: [PROMPT, 'chairs', PROMPT] }) // as Base64
const floats = await client.embeddings.create({ model: MODEL, input: PROMPT, encoding_format: 'float' })
const short = await client.embeddings.create({ model: MODEL, input: PROMPT, dimensions: 8 })
const names = []
for await (const model of client.models.list()) names.push(model.id)
const stored = await client.responses.create({ ...settings, store: true }).catch((error) => error)
const stateful = await client.responses
  .create({ ...settings, previous_response_id: plain.id })
  .catch((error) => error)

console.log(
  JSON.stringify({
    plain: { text: plain.output_text, status: plain.status, usage: plain.usage, store: plain.store },
    stream: { text: streamed.output_text, deltas, events, usage: streamed.usage },
    again: again.status,
    answered: answered.status,
    parsed: parsed.output_parsed,
    called: { name: call.name, arguments: call.parsed_arguments },
    embedding: {
      first: vectors.data[0].embedding,
      other: vectors.data[1].embedding,
      same: vectors.data[2].embedding,
      floats: floats.data[0].embedding,
      short: short.data[0].embedding,
      usage: vectors.usage,
    },
    model: await client.models.retrieve(MODEL),
    names,
    stored: { kind: stored.constructor.name, param: stored.param, message: stored.message },
    stateful: { kind: stateful.constructor.name, param: stateful.param },
  }),
)
