import { z } from 'zod';
import { outputBound } from './output-bounds.ts';

// Google's API (ai.google.dev/api/generate-content). Only what the gateway itself reads is checked, because Google adds members
// all the time, and they must reach it as the client has written them. Each name has two spellings there.

const Part = z.looseObject({});
const Content = z.looseObject({
  role: z.string().nullish(),
  parts: z.union([z.array(Part), Part]).nullish(),
});
const Contents = z.union([z.array(Content), Content]);

const GenerationConfig = z
  .looseObject({
    maxOutputTokens: outputBound(),
    max_output_tokens: outputBound(),
    candidateCount: outputBound(),
    candidate_count: outputBound(),
  })
  .nullish();

export const GenerateContentRequest = z.looseObject({
  contents: Contents,
  generationConfig: GenerationConfig,
  generation_config: GenerationConfig,
});

export const GenerateContentResponse = z.looseObject({
  candidates: z
    .array(
      z.looseObject({
        content: Content.optional(),
        finishReason: z.string().optional(),
        index: z.int().optional(),
      }),
    )
    .optional(),
  usageMetadata: z
    .looseObject({ promptTokenCount: z.int().optional(), totalTokenCount: z.int().optional() })
    .optional(),
  modelVersion: z.string().optional(),
  responseId: z.string().optional(),
});

/** Either the contents alone, or a whole request. */
export const CountTokensRequest = z.looseObject({
  contents: Contents.nullish(),
  generateContentRequest: z.looseObject({}).nullish(),
});

export const CountTokensResponse = z.looseObject({ totalTokens: z.int() });

export const EmbedContentRequest = z.looseObject({
  content: Content,
  taskType: z.string().nullish(),
  task_type: z.string().nullish(),
  title: z.string().nullish(),
  outputDimensionality: z.int().min(1).nullish(),
  output_dimensionality: z.int().min(1).nullish(),
});

export const BatchEmbedContentsRequest = z.looseObject({ requests: z.array(EmbedContentRequest).min(1).max(100) });

const Embedding = z.looseObject({ values: z.array(z.number()) });
export const EmbedContentResponse = z.looseObject({ embedding: Embedding });
export const BatchEmbedContentsResponse = z.looseObject({ embeddings: z.array(Embedding) });

export const GoogleModel = z.looseObject({
  name: z.string(),
  displayName: z.string(),
  supportedGenerationMethods: z.array(z.string()),
});
export const GoogleModelList = z.object({ models: z.array(GoogleModel), nextPageToken: z.string().optional() });
