// Requests structured output and, from the second model, tool calls through the ai package, and
// prints the results as one JSON object.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { generateObject, generateText, stepCountIs, streamObject, streamText, tool } from 'ai'
import { z } from 'zod'
import { order } from './order.mjs'

const { BASE_URL, API_KEY, MODEL, PROMPT } = process.env
const provider = createOpenAICompatible({
  name: 'anneal',
  baseURL: BASE_URL,
  apiKey: API_KEY,
  includeUsage: true,
  supportsStructuredOutputs: true,
})
const settings = {
  maxOutputTokens: 400,
  temperature: 0,
  maxRetries: 0,
  model: provider.chatModel(MODEL),
  prompt: PROMPT,
}
const schema = order((field) => field.optional())

const made = await generateObject({ ...settings, schema })
const streaming = streamObject({ ...settings, schema })
let pieces = 0
for await (const _ of streaming.partialObjectStream) pieces++
const list = await generateObject({
  ...settings,
  output: 'array',
  schema: z.tuple([z.enum(['a', 'b']), z.int().min(0).max(9)]),
}).catch((error) => ({ error: String(error) }))
const choice = await generateObject({ ...settings, output: 'enum', enum: ['chairs', 'tables'] })
const named = await generateObject({
  ...settings,
  schema: z.object({ stock: z.record(z.enum(['chair', 'table']), z.int().min(0).max(9)) }),
})

const tools = {
  ...settings,
  model: provider.chatModel(process.argv[2]),
  tools: { place: tool({ description: 'places an order', inputSchema: schema }) },
  toolChoice: 'required',
  stopWhen: stepCountIs(1),
}
const called = await generateText(tools)
const calledPiecewise = streamText(tools)
const calls = (list) => list.map(({ toolName, input, invalid }) => ({ toolName, input, invalid }))

console.log(
  JSON.stringify({
    made: made.object,
    finish: made.finishReason,
    streamed: await streaming.object,
    pieces,
    list: list.object ?? list.error,
    choice: choice.object,
    named: named.object,
    called: calls(called.toolCalls),
    calledFinish: called.finishReason,
    calledPiecewise: calls(await calledPiecewise.toolCalls),
  }),
)
