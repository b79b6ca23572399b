// Package balance chooses the replica that answers a request. It predicts when each replica will
// have processed the prompts that it was sent, and which prefix of a prompt each replica has
// cached. It has no clock and no I/O: the caller passes the time.
package balance

import (
	"crypto/sha256"
	"encoding/binary"
	"math"

	"github.com/minio/highwayhash"
)

// BlockTokens is the number of tokens in one block of a prompt. Replicas cache prompts in whole
// blocks.
const BlockTokens = 512

// A Prompt describes the prompt of a request to a Balancer.
type Prompt struct {
	Tokens int64 // number of tokens; may be an estimate
	// Blocks has one hash for each full block of the prompt. A hash covers the prompt up to the end of
	// its block, so equal hashes mean equal prefixes.
	Blocks []uint64
}

// A Hasher computes the block hashes of prompts with a secret key, so that no client can choose
// prompts whose hashes collide. Hashers with the same key compute the same hashes.
type Hasher struct {
	key [sha256.Size]byte
}

// NewHasher returns a Hasher whose key is derived from a secret.
func NewHasher(secret []byte) Hasher {
	return Hasher{sha256.Sum256(append([]byte("anneal: blocks of prompts\x00"), secret...))}
}

func (h Hasher) sum(data []byte) uint64 { return highwayhash.Sum64(data, h.key[:]) }

// bytesPerToken is the mean length of a token in English text.
const bytesPerToken = 4

// TokensOf returns the estimated number of tokens of a text, from its length in bytes.
func TokensOf(bytes int) int { return max(1, bytes/bytesPerToken) }

// Text returns the Prompt of a text whose tokens are not known. It estimates one token for every
// four bytes. scope separates the caches of accounts, models and addons.
func (h Hasher) Text(scope string, text []byte) Prompt {
	const size = BlockTokens * bytesPerToken
	p := Prompt{Tokens: int64(TokensOf(len(text))), Blocks: make([]uint64, 0, len(text)/size)}
	chain := h.sum([]byte(scope))
	for ; len(text) >= size; text = text[size:] {
		chain = h.next(chain, text[:size])
		p.Blocks = append(p.Blocks, chain)
	}
	return p
}

// TokenIDs returns the Prompt of a text whose token IDs are known.
func (h Hasher) TokenIDs(scope string, tokens []int) Prompt {
	p := Prompt{Tokens: int64(max(1, len(tokens))), Blocks: make([]uint64, 0, len(tokens)/BlockTokens)}
	chain := h.sum([]byte(scope))
	var block [4 * BlockTokens]byte
	for ; len(tokens) >= BlockTokens; tokens = tokens[BlockTokens:] {
		for i, token := range tokens[:BlockTokens] {
			binary.LittleEndian.PutUint32(block[4*i:], uint32(min(token, math.MaxUint32)))
		}
		chain = h.next(chain, block[:])
		p.Blocks = append(p.Blocks, chain)
	}
	return p
}

// next returns the hash of a block that follows the blocks with the hash chain.
func (h Hasher) next(chain uint64, block []byte) uint64 {
	return h.sum(block)*0x9e3779b97f4a7c15 ^ (chain<<31|chain>>33)*0xbf58476d1ce4e5b9
}
