import { z } from 'zod';

// Unknown members are rejected. A block has exactly one member, which is its type.
const anything = z.unknown().optional();

function oneOf<Shape extends z.ZodRawShape>(shape: Shape) {
  return z
    .strictObject(shape)
    .refine((value) => Object.keys(value).length === 1, 'exactly one member must be set in a union');
}

const cachePoint = z.strictObject({ type: z.literal('default'), ttl: z.enum(['5m', '1h']).optional() }).optional();
const bytesOrS3 = oneOf({
  bytes: z.base64().optional(),
  s3Location: z.strictObject({ uri: z.string(), bucketOwner: z.string().optional() }).optional(),
});
const image = z.strictObject({ format: z.enum(['png', 'jpeg', 'gif', 'webp']), source: bytesOrS3 }).optional();
const video = z.strictObject({ format: z.string(), source: bytesOrS3 }).optional();
const document = z
  .strictObject({
    format: z.enum(['pdf', 'csv', 'doc', 'docx', 'xls', 'xlsx', 'html', 'txt', 'md']),
    name: z
      .string()
      .regex(
        /^[A-Za-z0-9()[\]-]+( [A-Za-z0-9()[\]-]+)*$/,
        'document names hold letters, digits, single spaces, hyphens, parentheses and brackets',
      ),
    source: oneOf({
      bytes: z.base64().optional(),
      s3Location: anything,
      text: z.string().optional(),
      content: anything,
    }),
    context: z.string().optional(),
    citations: anything,
  })
  .optional();
const identifier = z.string().regex(/^[a-zA-Z0-9_-]{1,64}$/, 'must satisfy regular expression pattern: [a-zA-Z0-9_-]+');
const toolUse = z.strictObject({
  toolUseId: identifier,
  name: identifier,
  input: z.record(z.string(), z.unknown()),
  type: anything,
});
const toolResult = z.strictObject({
  toolUseId: identifier,
  content: z.array(
    oneOf({ text: z.string().optional(), json: anything, image, document, video, searchResult: anything }),
  ),
  status: z.enum(['success', 'error']).optional(),
  type: anything,
});
const reasoning = oneOf({
  reasoningText: z.strictObject({ text: z.string(), signature: z.string().optional() }).optional(),
  redactedContent: z.base64().optional(),
});

const block = oneOf({
  text: z.string().optional(),
  image,
  document,
  video,
  audio: anything,
  toolUse: toolUse.optional(),
  toolResult: toolResult.optional(),
  guardContent: anything,
  cachePoint,
  reasoningContent: reasoning.optional(),
  citationsContent: anything,
  searchResult: anything,
});
const message = z.strictObject({ role: z.enum(['user', 'assistant']), content: z.array(block).min(1) });
const system = oneOf({ text: z.string().min(1).optional(), cachePoint, guardContent: anything });

const toolSpec = z.strictObject({
  name: identifier,
  description: z.string().min(1).optional(),
  inputSchema: z.strictObject({ json: z.looseObject({ type: z.literal('object') }) }),
  strict: z.boolean().optional(),
});
const toolConfig = z.strictObject({
  tools: z.array(oneOf({ toolSpec: toolSpec.optional(), cachePoint, systemTool: anything })).min(1),
  toolChoice: oneOf({
    auto: z.strictObject({}).optional(),
    any: z.strictObject({}).optional(),
    tool: z.strictObject({ name: identifier }).optional(),
  }).optional(),
});
const jsonSchema = z.strictObject({
  schema: z.string(),
  name: z.string().optional(),
  description: z.string().optional(),
});

export const converseRequest = z.strictObject({
  messages: z.array(message).min(1),
  system: z.array(system).optional(),
  inferenceConfig: z
    .strictObject({
      maxTokens: z.int().min(1).optional(),
      temperature: z.number().min(0).max(1).optional(),
      topP: z.number().min(0).max(1).optional(),
      stopSequences: z.array(z.string().min(1)).max(2500).optional(),
    })
    .optional(),
  toolConfig: toolConfig.optional(),
  guardrailConfig: z
    .strictObject({
      guardrailIdentifier: z.string(),
      guardrailVersion: z.string(),
      trace: z.enum(['enabled', 'disabled', 'enabled_full']).optional(),
      streamProcessingMode: z.enum(['sync', 'async']).optional(),
    })
    .optional(),
  additionalModelRequestFields: z.record(z.string(), z.unknown()).optional(),
  additionalModelResponseFieldPaths: z.array(z.string()).max(10).optional(),
  promptVariables: anything,
  requestMetadata: z.record(z.string(), z.string()).optional(),
  performanceConfig: z.strictObject({ latency: z.enum(['standard', 'optimized']).optional() }).optional(),
  serviceTier: z.strictObject({ type: z.string() }).optional(),
  outputConfig: z
    .strictObject({
      textFormat: z
        .strictObject({
          type: z.literal('json_schema'),
          structure: oneOf({ jsonSchema: jsonSchema.optional() }),
        })
        .optional(),
    })
    .optional(),
});

export type ConverseRequest = z.output<typeof converseRequest>;
export type ConverseMessage = z.output<typeof message>;
