// Sends a recording to a server through the openai package, requests every format, and prints the
// responses as one JSON object.
import fs from 'node:fs'
import OpenAI from 'openai'

const { BASE_URL, API_KEY, MODEL } = process.env
const client = new OpenAI({ baseURL: BASE_URL, apiKey: API_KEY, maxRetries: 0 })
const ask = (settings) =>
  client.audio.transcriptions.create({ file: fs.createReadStream(process.argv[2]), model: MODEL, ...settings })
const verbose = async (...granularities) => {
  const said = await ask({ response_format: 'verbose_json', timestamp_granularities: granularities })
  return {
    text: said.text,
    language: said.language,
    duration: said.duration,
    words: said.words?.length ?? 0,
    segments: said.segments?.length ?? 0,
  }
}

const stream = { deltas: '', text: '', listened: 0 }
for await (const event of await ask({ stream: true })) {
  if (event.type === 'transcript.text.delta') stream.deltas += event.delta
  if (event.type === 'transcript.text.done') stream.text = event.text
  if (event.type === 'transcript.progress') stream.listened = event.seconds
}
const refusal = await ask({ temperature: 3 }).catch((error) => error)

console.log(
  JSON.stringify({
    json: (await ask({})).text,
    text: await ask({ response_format: 'text' }),
    srt: await ask({ response_format: 'srt' }),
    vtt: await ask({ response_format: 'vtt' }),
    word: await verbose('word'),
    segment: await verbose('segment'),
    both: await verbose('word', 'segment'),
    stream,
    refusal: {
      kind: refusal.constructor.name,
      status: refusal.status,
      param: refusal.param,
      message: refusal.message,
    },
  }),
)
