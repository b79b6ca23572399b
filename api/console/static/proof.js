// Proofs of events are verified with the SHA-256 and Ed25519 of the browser. docs/proofs.md describes the
// formats.

const utf8 = new TextEncoder()
const bytesOf = (base64) => Uint8Array.from(atob(base64), (c) => c.charCodeAt(0))

function join(...parts) {
  const all = new Uint8Array(parts.reduce((n, p) => n + p.length, 0))
  let at = 0
  for (const p of parts) {
    all.set(p, at)
    at += p.length
  }
  return all
}

const sha256 = async (...parts) => new Uint8Array(await crypto.subtle.digest('SHA-256', join(...parts)))
const hex = (bytes) => [...bytes].map((b) => b.toString(16).padStart(2, '0')).join('')

function bigEndian(n, size) {
  const b = new Uint8Array(size)
  for (let i = size - 1, v = BigInt(n); i >= 0; i--, v >>= 8n) b[i] = Number(v & 255n)
  return b
}

const counted = (text) => {
  const b = utf8.encode(text)
  return join(bigEndian(b.length, 4), b)
}

// leafOf returns the leaf hash of an event, as the bundle discloses it.
async function leafOf(d) {
  const envelope = await sha256(
    utf8.encode('anneal log envelope 1\n'),
    bytesOf(d.envelopeSalt),
    counted(d.subject),
    bigEndian(d.attributes.length, 4),
    ...d.attributes.flatMap((a) => [counted(a.name), counted(a.value)]),
    bigEndian(d.accountSequence, 8),
    bytesOf(d.previousLeaf),
  )
  const payload = d.payloadCommitment
    ? bytesOf(d.payloadCommitment)
    : await sha256(utf8.encode('anneal log payload 1\n'), bytesOf(d.payloadSalt), utf8.encode(d.payload))
  return sha256(Uint8Array.of(0, 1), bigEndian(d.position, 8), envelope, payload)
}

// rootOf returns the root hash of the tree of a size in which a leaf is at an index (RFC 9162, 2.1.3.2).
export async function rootOf(leaf, index, size, path) {
  let [hash, fn, sn] = [leaf, BigInt(index), BigInt(size) - 1n]
  for (const p of path) {
    if (sn === 0n) return null
    if (fn & 1n || fn === sn) {
      hash = await sha256(Uint8Array.of(1), p, hash)
      while (!(fn & 1n) && fn) [fn, sn] = [fn >> 1n, sn >> 1n]
    } else hash = await sha256(Uint8Array.of(1), hash, p)
    ;[fn, sn] = [fn >> 1n, sn >> 1n]
  }
  return sn === 0n ? hash : null
}

// signed reports whether a key of the log, as `anneal log key` prints it, has signed a checkpoint.
async function signed(text, signatures, key) {
  const [, name, , encoded] = /^(.+)\+([0-9a-f]{8})\+(.+)$/.exec(key.trim()) || []
  if (!name) throw new Error("the key of the log has the form NAME+HASH+KEY: print it with 'anneal log key'")
  const raw = bytesOf(encoded)
  const digest = hex(await sha256(raw.slice(1)))
  if (raw[0] !== 1 || name !== text.split('\n')[0] || !name.endsWith(digest.slice(0, 16))) return false
  const own = await crypto.subtle.importKey('raw', raw.slice(1), 'Ed25519', false, ['verify'])
  for (const line of signatures.split('\n')) {
    const [dash, signer, value] = line.split(' ')
    if (dash !== '—' || signer !== name) continue
    if (await crypto.subtle.verify('Ed25519', own, bytesOf(value).slice(4), utf8.encode(text))) return true
  }
  return false
}

// verify verifies the bundle of an event, and returns what was checked: [{what, ok}], where ok is null for what
// could not be checked. key is the log's, or empty.
export async function verify(bundle, event, key) {
  if (!crypto.subtle) return [{ what: 'browsers verify proofs only over HTTPS or on localhost', ok: null }]
  const d = bundle.event
  const [head, ...rest] = bundle.proof.split('\n\n')
  const [format, index, ...path] = head.split('\n')
  const [text, signatures] = [`${rest[0]}\n`, rest[1] || '']
  const [origin, size, root] = text.split('\n')
  const attribute = (name) => d.attributes.find((a) => a.name === `ce-${name}`)?.value
  const same = ['id', 'type', 'subject', 'actor'].every(
    (n) => (event[n] ?? '') === decodeURIComponent(attribute(n) ?? ''),
  )
  const shown = d.payload === undefined || JSON.stringify(JSON.parse(d.payload)) === JSON.stringify(event.data)
  const computed = await rootOf(await leafOf(d), index.split(' ')[1], size, path.map(bytesOf))
  const position = format === 'c2sp.org/tlog-proof@v1' && index === `index ${d.position - 1}`
  const checks = [
    { what: 'the proof is of this event', ok: position && same && d.position === event.position },
    d.payload === undefined
      ? { what: 'the data are not disclosed: the tree has their commitment', ok: null }
      : { what: 'the data shown are those in the proof', ok: shown },
    {
      what: `the event is at position ${d.position} of the ${size} events in the checkpoint (SHA-256)`,
      ok: computed !== null && hex(computed) === hex(bytesOf(root)),
    },
  ]
  const what = `the key of the log ${origin} signed the checkpoint (Ed25519)`
  if (!key) return [...checks, { what: `${what}: give the key to check this`, ok: null }]
  try {
    return [...checks, { what, ok: await signed(text, signatures, key) }]
  } catch (e) {
    if (e.name !== 'NotSupportedError') throw e
    return [...checks, { what: `${what}: this browser has no Ed25519`, ok: null }]
  }
}
