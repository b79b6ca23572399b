// Sends requests through the openai package, and prints the responses as one JSON object.
import OpenAI from 'openai'

const { BASE_URL, API_KEY, MODEL, PROMPT } = process.env
const client = new OpenAI({ baseURL: BASE_URL, apiKey: API_KEY, maxRetries: 0 })
const settings = { model: MODEL, max_tokens: 24, temperature: 0 }
const messages = [{ role: 'user', content: PROMPT }]

const completion = await client.completions.create({ ...settings, prompt: PROMPT, logprobs: 1 })
const pieces = { text: '', chunks: 0, finish: null, usage: null }
for await (const chunk of await client.completions.create({ ...settings, prompt: PROMPT, stream: true })) {
  pieces.chunks++
  pieces.text += chunk.choices[0]?.text ?? ''
  pieces.finish = chunk.choices[0]?.finish_reason ?? pieces.finish
  pieces.usage = chunk.usage ?? pieces.usage
}

const chat = await client.chat.completions.create({ ...settings, messages })
const stream = client.chat.completions.stream({ ...settings, messages, stream_options: { include_usage: true } })
let chunks = 0
stream.on('chunk', () => chunks++)
const streamed = await stream.finalChatCompletion()

const models = []
for await (const model of client.models.list()) models.push(model.id)

const refusal = await client.completions
  .create({ ...settings, prompt: PROMPT, temperature: 3 })
  .catch((error) => error)
const missing = await client.chat.completions
  .create({ ...settings, model: MODEL + '-none', messages })
  .catch((error) => error)

console.log(
  JSON.stringify({
    completion: {
      text: completion.choices[0].text,
      finish: completion.choices[0].finish_reason,
      usage: completion.usage,
      tokens: completion.choices[0].logprobs.tokens.length,
    },
    stream: pieces,
    chat: { text: chat.choices[0].message.content, finish: chat.choices[0].finish_reason, usage: chat.usage },
    chatStream: {
      text: streamed.choices[0].message.content,
      chunks,
      finish: streamed.choices[0].finish_reason,
      usage: streamed.usage,
    },
    models,
    refusal: {
      kind: refusal.constructor.name,
      status: refusal.status,
      param: refusal.param,
      message: refusal.message,
    },
    missing: { kind: missing.constructor.name, status: missing.status, message: missing.message },
  }),
)
