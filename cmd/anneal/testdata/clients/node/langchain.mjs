// Sends requests through LangChain's models for OpenAI and for the hosted service and, to the
// second model, requests a tool call, and prints the results as one JSON object.
import { ChatFireworks } from '@langchain/community/chat_models/fireworks'
import { tool } from '@langchain/core/tools'
import { ChatOpenAI, OpenAI, OpenAIEmbeddings } from '@langchain/openai'
import { z } from 'zod'

const { BASE_URL, API_KEY, MODEL, PROMPT } = process.env
const settings = {
  model: MODEL,
  apiKey: API_KEY,
  configuration: { baseURL: BASE_URL },
  temperature: 0,
  maxTokens: 24,
  maxRetries: 0,
}
const longer = { ...settings, maxTokens: 200 }
const tools = { ...longer, model: process.argv[2] }
const schema = z.object({ item: z.enum(['chair', 'table']), count: z.number().int().min(1).max(99) })

// ChatFireworks has no option for the address.
function hosted(fields) {
  const model = new ChatFireworks(fields)
  model.clientConfig.baseURL = BASE_URL
  return model
}

async function chat(create) {
  const model = create(settings)
  const plain = await model.invoke(PROMPT)
  const stream = { text: '', chunks: 0 }
  for await (const chunk of await model.stream(PROMPT)) {
    stream.chunks++
    stream.text += chunk.text
    stream.finish = chunk.response_metadata.finish_reason ?? stream.finish
  }
  const place = tool(async () => 'placed', { name: 'place', description: 'places an order', schema })
  const called = await create(tools).bindTools([place], { tool_choice: 'place' }).invoke(PROMPT)
  return {
    text: plain.text,
    finish: plain.response_metadata.finish_reason,
    usage: plain.usage_metadata,
    stream,
    call: called.tool_calls[0],
  }
}

const openai = await chat((fields) => new ChatOpenAI(fields))
const responses = await new ChatOpenAI({ ...settings, useResponsesApi: true }).invoke(PROMPT)
const made = await new ChatOpenAI(longer).withStructuredOutput(schema, { method: 'jsonSchema' }).invoke(PROMPT)
const completion = await new OpenAI(settings).invoke(PROMPT)
const embedder = new OpenAIEmbeddings({ ...settings, dimensions: 8 })
const vectors = await embedder.embedDocuments([PROMPT, 'chairs'])
const query = await embedder.embedQuery(PROMPT)
const refusal = await new ChatOpenAI({ ...settings, temperature: 3 }).invoke(PROMPT).catch((error) => error)

console.log(
  JSON.stringify({
    openai,
    fireworks: await chat(hosted),
    responses: { text: responses.text, usage: responses.usage_metadata },
    made,
    completion,
    vectors,
    query,
    refusal: { name: refusal.name, status: refusal.status, param: refusal.param },
  }),
)
