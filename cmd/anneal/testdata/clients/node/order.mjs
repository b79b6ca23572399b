// The schema of structured responses: nested objects, lists, enumerations, alternatives and
// optional fields.
import { z } from 'zod'

const way = z.discriminatedUnion('by', [
  z.object({ by: z.literal('post'), stamps: z.int().min(1).max(3) }),
  z.object({ by: z.literal('van') }),
])

// The openai package requires every field, with null for a missing value; the ai package omits missing fields.
export const order = (missing) =>
  z.object({
    customer: z.object({ name: z.string().max(8), kind: z.enum(['person', 'company']) }).describe('who orders'),
    lines: z
      .array(
        z.object({
          item: z.enum(['chair', 'table']),
          count: z.number().int().min(1).max(99),
          colour: missing(z.enum(['pink', 'red'])),
        }),
      )
      .min(1)
      .max(2),
    code: z.string().regex(/^[A-Z]{2}-\d{2}$/),
    initial: z.string().length(1).uppercase(),
    urgent: z.boolean(),
    weight: z.number().min(0).max(100),
    when: z.iso.date(),
    within: z.iso.duration(),
    way,
    note: missing(z.string().max(6)),
  })
