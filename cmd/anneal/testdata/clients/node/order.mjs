// What structured answers are held to: objects within objects, lists, enumerations, choices, and fields that may be missing.
import { z } from 'zod'

const way = z.discriminatedUnion('by', [
  z.object({ by: z.literal('post'), stamps: z.int().min(1).max(3) }),
  z.object({ by: z.literal('van') }),
])

// The openai package wants every field, null where there is nothing; the ai package leaves fields out.
export const order = (missing) => z.object({
  customer: z.object({ name: z.string().max(8), kind: z.enum(['person', 'company']) }).describe('who orders'),
  lines: z.array(z.object({ item: z.enum(['chair', 'table']), count: z.number().int().min(1).max(99), colour: missing(z.enum(['pink', 'red'])) })).min(1).max(2),
  code: z.string().regex(/^[A-Z]{2}-\d{2}$/),
  initial: z.string().length(1).uppercase(),
  urgent: z.boolean(),
  weight: z.number().min(0).max(100),
  when: z.iso.date(),
  within: z.iso.duration(),
  way,
  note: missing(z.string().max(6)),
})
