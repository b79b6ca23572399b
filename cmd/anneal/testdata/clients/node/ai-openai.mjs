// Sends requests through the ai package and its provider for OpenAI, which uses responses by
// default, and, from the second model, requests tool calls, and prints the results as one JSON
// object.
import { createOpenAI } from '@ai-sdk/openai'
import { embedMany, generateObject, generateText, stepCountIs, streamText, tool } from 'ai'
import { z } from 'zod'

const { BASE_URL, API_KEY, MODEL, PROMPT } = process.env
const provider = createOpenAI({ baseURL: BASE_URL, apiKey: API_KEY })
const settings = { maxOutputTokens: 24, temperature: 0, maxRetries: 0, model: provider(MODEL), prompt: PROMPT }

const plain = await generateText(settings)
const streaming = streamText(settings)
const pieces = { text: '', chunks: 0 }
for await (const piece of streaming.textStream) {
  pieces.chunks++
  pieces.text += piece
}
const schema = z.object({ item: z.enum(['chair', 'table']), count: z.int().min(1).max(99) })
const made = await generateObject({ ...settings, maxOutputTokens: 200, schema })
let executed = 0
const tools = {
  place: tool({
    description: 'places an order',
    inputSchema: schema,
    execute: async () => {
      executed++
      return 'placed'
    },
  }),
}
const called = await generateText({
  ...settings,
  maxOutputTokens: 200,
  model: provider(process.argv[2]),
  tools,
  stopWhen: stepCountIs(2),
  prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? 'required' : 'none' }),
  providerOptions: { openai: { store: false } },
})
const vectors = await embedMany({ model: provider.embeddingModel(MODEL), values: [PROMPT, 'chairs'], maxRetries: 0 })
const refusal = await generateText({ ...settings, temperature: 3 }).catch((error) => error)

console.log(
  JSON.stringify({
    plain: { text: plain.text, finish: plain.finishReason, usage: plain.usage },
    stream: { ...pieces, finish: await streaming.finishReason, usage: await streaming.usage },
    made: made.object,
    executed,
    steps: called.steps.length,
    call: called.steps[0].toolCalls[0],
    embeddings: vectors.embeddings.map((vector) => vector.length),
    tokens: vectors.usage.tokens,
    refusal: { name: refusal.name, status: refusal.statusCode, message: refusal.message },
  }),
)
