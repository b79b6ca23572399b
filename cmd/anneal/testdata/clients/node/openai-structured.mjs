// Requests structured output and, from the second model, tool calls through the openai package, and
// prints the results as one JSON object.
import OpenAI from 'openai'
import { zodFunction, zodResponseFormat } from 'openai/helpers/zod'
import { order } from './order.mjs'

const { BASE_URL, API_KEY, MODEL, PROMPT } = process.env
const client = new OpenAI({ baseURL: BASE_URL, apiKey: API_KEY, maxRetries: 0 })
const settings = { model: MODEL, max_tokens: 400, temperature: 0, messages: [{ role: 'user', content: PROMPT }] }
const schema = order((field) => field.nullable())
const format = { response_format: zodResponseFormat(schema, 'order') }

const parsed = await client.chat.completions.parse({ ...settings, ...format })
const streamed = await client.chat.completions.stream({ ...settings, ...format }).finalChatCompletion()
const tools = {
  ...settings,
  model: process.argv[2],
  tools: [zodFunction({ name: 'place', parameters: schema })],
  tool_choice: { type: 'function', function: { name: 'place' } },
}
const called = await client.chat.completions.parse(tools)
const calledPiecewise = await client.chat.completions.stream(tools).finalChatCompletion()
const cut = await client.chat.completions.parse({ ...settings, ...format, max_tokens: 5 }).catch((error) => error)

console.log(
  JSON.stringify({
    parsed: parsed.choices[0].message.parsed,
    text: parsed.choices[0].message.content,
    finish: parsed.choices[0].finish_reason,
    streamed: streamed.choices[0].message.parsed,
    called: called.choices[0].message.tool_calls[0].function,
    calledFinish: called.choices[0].finish_reason,
    calledPiecewise: calledPiecewise.choices[0].message.tool_calls[0].function,
    cut: cut.constructor.name,
  }),
)
