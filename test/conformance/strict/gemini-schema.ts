import { z } from 'zod';

// Unknown members are rejected, as by the service's JSON parser.
const anything = z.unknown().optional();
/** Protocol Buffers accept both alphabets, with and without padding (ProtoJSON). */
const bytes = z.string().regex(/^[A-Za-z0-9+/_-]*={0,2}$/, 'Invalid base64-encoded string');
const blob = z.strictObject({ mimeType: z.string(), data: bytes, displayName: z.string().optional() });
const dataMembers = [
  'text',
  'inlineData',
  'fileData',
  'functionCall',
  'functionResponse',
  'executableCode',
  'codeExecutionResult',
];

const part = z
  .strictObject({
    text: z.string().optional(),
    inlineData: blob.optional(),
    fileData: z
      .strictObject({ mimeType: z.string().optional(), fileUri: z.string(), displayName: anything })
      .optional(),
    functionCall: z
      .strictObject({
        id: z.string().optional(),
        name: z.string().min(1),
        args: z.record(z.string(), z.unknown()).optional(),
        partialArgs: anything,
        willContinue: anything,
      })
      .optional(),
    functionResponse: z
      .strictObject({
        id: z.string().optional(),
        name: z.string().min(1),
        response: z.record(z.string(), z.unknown()),
        parts: anything,
        willContinue: anything,
        scheduling: anything,
      })
      .optional(),
    executableCode: anything,
    codeExecutionResult: anything,
    thought: z.boolean().optional(),
    thoughtSignature: bytes.optional(),
    videoMetadata: anything,
    mediaResolution: anything,
    partMetadata: anything,
  })
  .refine(
    (value) => dataMembers.filter((name) => name in value).length === 1,
    "required oneof field 'data' must have one initialized field",
  );
export const content = z.strictObject({ role: z.string().optional(), parts: z.array(part) });

/** The subset of OpenAPI that `responseSchema` and `parameters` support; `$ref`, `additionalProperties` and more are unknown there. */
const openApiSchema: z.ZodType = z.lazy(() =>
  z.strictObject({
    type: z
      .string()
      .regex(/^(string|number|integer|boolean|array|object|null|type_unspecified)$/i)
      .optional(),
    format: z.string().optional(),
    title: z.string().optional(),
    description: z.string().optional(),
    nullable: z.boolean().optional(),
    enum: z.array(z.string()).optional(),
    items: openApiSchema.optional(),
    minItems: z.union([z.int(), z.string()]).optional(),
    maxItems: z.union([z.int(), z.string()]).optional(),
    properties: z.record(z.string(), openApiSchema).optional(),
    required: z.array(z.string()).optional(),
    propertyOrdering: z.array(z.string()).optional(),
    minProperties: anything,
    maxProperties: anything,
    minLength: anything,
    maxLength: anything,
    pattern: z.string().optional(),
    minimum: z.number().optional(),
    maximum: z.number().optional(),
    anyOf: z.array(openApiSchema).optional(),
    example: anything,
    default: anything,
  }),
);

const declaration = z.strictObject({
  name: z
    .string()
    .regex(/^[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}$/, 'Invalid function name. Must start with a letter or an underscore.'),
  description: z.string().optional(),
  parameters: openApiSchema.optional(),
  parametersJsonSchema: anything,
  response: anything,
  responseJsonSchema: anything,
  behavior: anything,
});
const tool = z.strictObject({
  functionDeclarations: z.array(declaration).optional(),
  googleSearch: anything,
  googleSearchRetrieval: anything,
  codeExecution: anything,
  urlContext: anything,
  googleMaps: anything,
  computerUse: anything,
  fileSearch: anything,
});
const generationConfig = z.strictObject({
  stopSequences: z.array(z.string()).max(5).optional(),
  responseMimeType: z.string().optional(),
  responseSchema: openApiSchema.optional(),
  responseJsonSchema: anything,
  responseModalities: z.array(z.string()).optional(),
  candidateCount: z.int().min(1).max(8).optional(),
  maxOutputTokens: z.int().min(1).optional(),
  temperature: z.number().min(0).max(2).optional(),
  topP: z.number().min(0).max(1).optional(),
  topK: z.number().min(1).optional(),
  seed: z.int().min(-2_147_483_648).max(2_147_483_647).optional(),
  presencePenalty: z.number().min(-2).lt(2.000_001).optional(),
  frequencyPenalty: z.number().min(-2).lt(2.000_001).optional(),
  responseLogprobs: z.boolean().optional(),
  logprobs: z.int().min(0).max(20).optional(),
  enableEnhancedCivicAnswers: anything,
  speechConfig: anything,
  imageConfig: anything,
  audioTimestamp: anything,
  mediaResolution: anything,
  routingConfig: anything,
  thinkingConfig: z
    .strictObject({
      includeThoughts: z.boolean().optional(),
      thinkingBudget: z.int().min(-1).optional(),
      thinkingLevel: z
        .string()
        .regex(/^(minimal|low|medium|high|thinking_level_unspecified)$/i)
        .optional(),
    })
    .optional(),
});
const members = {
  contents: z.array(content).min(1, 'contents is not specified'),
  systemInstruction: content.optional(),
  tools: z.array(tool).optional(),
  toolConfig: z
    .strictObject({
      functionCallingConfig: z
        .strictObject({
          mode: z
            .string()
            .regex(/^(mode_unspecified|auto|any|none|validated)$/i)
            .optional(),
          allowedFunctionNames: z.array(z.string()).optional(),
          streamFunctionCallArguments: anything,
        })
        .optional(),
      retrievalConfig: anything,
    })
    .optional(),
  safetySettings: z.array(z.strictObject({ category: z.string(), threshold: z.string(), method: anything })).optional(),
  generationConfig: generationConfig.optional(),
  cachedContent: z.string().optional(),
};

export const geminiRequest = z.strictObject({ model: z.string().optional(), ...members });
/** Vertex AI has a few more members and requires a role in every turn. */
export const vertexRequest = z.strictObject({
  ...members,
  contents: z.array(content.extend({ role: z.string('Please use a valid role: user, model.') })).min(1),
  labels: z.record(z.string(), z.string()).optional(),
  modelArmorConfig: anything,
});

export type Content = z.output<typeof content>;
