// Sends requests through the ai package and its OpenAI-compatible provider, and prints the
// responses as one JSON object.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { generateText, streamText } from 'ai'

const { BASE_URL, API_KEY, MODEL, PROMPT } = process.env
const provider = createOpenAICompatible({ name: 'anneal', baseURL: BASE_URL, apiKey: API_KEY, includeUsage: true })
const settings = { maxOutputTokens: 24, temperature: 0, maxRetries: 0 }

const completion = await generateText({
  ...settings,
  model: provider.completionModel(MODEL),
  prompt: [{ role: 'user', content: PROMPT }],
}).catch((error) => ({ error }))
const chat = await generateText({
  ...settings,
  model: provider.chatModel(MODEL),
  messages: [{ role: 'user', content: PROMPT }],
})
const streaming = streamText({
  ...settings,
  model: provider.chatModel(MODEL),
  messages: [{ role: 'user', content: PROMPT }],
})
const pieces = { text: '', chunks: 0 }
for await (const piece of streaming.textStream) {
  pieces.chunks++
  pieces.text += piece
}
const refusal = await generateText({
  ...settings,
  temperature: 3,
  model: provider.chatModel(MODEL),
  prompt: PROMPT,
}).catch((error) => error)

console.log(
  JSON.stringify({
    completion: { finish: completion.finishReason, error: completion.error && String(completion.error) },
    chat: { text: chat.text, finish: chat.finishReason, usage: chat.usage },
    chatStream: { ...pieces, finish: await streaming.finishReason, usage: await streaming.usage },
    refusal: { name: refusal.name, status: refusal.statusCode, message: refusal.message },
  }),
)
