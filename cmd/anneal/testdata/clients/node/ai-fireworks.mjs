// Sends requests through the ai package and its provider for the hosted service of the interface,
// and prints the responses as one JSON object.
import { createFireworks } from '@ai-sdk/fireworks'
import { embedMany, generateObject, generateText, streamText } from 'ai'
import { z } from 'zod'

const { BASE_URL, API_KEY, MODEL, PROMPT } = process.env
const provider = createFireworks({ baseURL: BASE_URL, apiKey: API_KEY })
const settings = { maxOutputTokens: 24, temperature: 0, maxRetries: 0, model: provider(MODEL) }

const chat = await generateText({ ...settings, prompt: PROMPT })
const streaming = streamText({ ...settings, prompt: PROMPT })
const pieces = { text: '', chunks: 0 }
for await (const piece of streaming.textStream) {
  pieces.chunks++
  pieces.text += piece
}
const completion = await generateText({ ...settings, model: provider.completionModel(MODEL), prompt: PROMPT })
const schema = z.object({ item: z.enum(['chair', 'table']), count: z.int().min(1).max(99) })
const made = await generateObject({ ...settings, maxOutputTokens: 200, prompt: PROMPT, schema })
const vectors = await embedMany({
  model: provider.textEmbeddingModel(MODEL),
  values: [PROMPT, 'chairs'],
  maxRetries: 0,
})
const refusal = await generateText({ ...settings, temperature: 3, prompt: PROMPT }).catch((error) => error)

console.log(
  JSON.stringify({
    chat: { text: chat.text, finish: chat.finishReason, usage: chat.usage },
    chatStream: { ...pieces, finish: await streaming.finishReason },
    completion: { finish: completion.finishReason },
    made: made.object,
    embeddings: vectors.embeddings.map((vector) => vector.length),
    refusal: { name: refusal.name, status: refusal.statusCode, message: refusal.message },
  }),
)
