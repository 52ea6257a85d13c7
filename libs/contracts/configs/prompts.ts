import { z } from 'zod';
import { anyObject, integer, text } from '../scalars.ts';

const name = () => text({ min: 1, max: 200 });
const description = () => text({ max: 2_000 }).nullish();
/** Its length in bytes is limited by configuration (SLUICE_PROMPT_MAX). */
const template = () => z.string().min(1);
const reference = () => text({ min: 1, max: 200 });
const objects = () => z.array(anyObject()).max(128).nullish();

/** Members of the body of POST /prompts. */
export const promptFields = {
  name: name(),
  collection_id: reference().optional().describe('The ID or slug of a collection. Default: the default collection.'),
  string: template().describe('A text, or a list of messages as JSON text, with Mustache tags.'),
  parameters: anyObject().default({}).describe('Request parameters, such as temperature.'),
  functions: objects(),
  tools: objects(),
  tool_choice: z.union([z.string().max(200), anyObject()]).nullish(),
  model: text({ min: 1, max: 500 }).nullish(),
  virtual_key: reference().nullish(),
  config: reference().nullish().describe('The slug or ID of a stored config.'),
  version_description: description(),
  template_metadata: anyObject().nullish(),
  is_raw_template: z.union([z.boolean(), integer({ min: 0, max: 1 })]).optional(),
};

/** Members of PUT only. */
export const promptUpdateFields = {
  patch: z
    .boolean()
    .optional()
    .describe('If true, members that you leave out keep their values from the newest version.'),
  prompt_metadata: anyObject().nullish().describe('Another name for template_metadata.'),
};

const versionStatus = z.enum(['active', 'archived']);

/** A prompt with one of its versions; times in ISO 8601. */
export const PromptObject = z.looseObject({
  id: z.string(),
  object: z.literal('prompt'),
  slug: z.string(),
  name: z.string(),
  collection_id: z.string(),
  string: z.string(),
  parameters: anyObject(),
  functions: z.array(anyObject()).nullable(),
  tools: z.array(anyObject()).nullable(),
  tool_choice: z.union([z.string(), anyObject()]).nullable(),
  model: z.string().nullable(),
  virtual_key: z.string().nullable(),
  config: z.string().nullable(),
  template_metadata: anyObject().nullable(),
  is_raw_template: z.boolean(),
  version_id: z.string(),
  prompt_version: z.int(),
  prompt_version_id: z.string(),
  prompt_version_status: versionStatus,
  prompt_version_description: z.string().nullable(),
  prompt_version_label_id: z.string().nullable(),
  last_version: z.int(),
  status: z.enum(['active', 'deleted']),
  created_at: z.string(),
  last_updated_at: z.string(),
});

/** Body of PUT /prompts/{slug}/versions/{version}; null removes the label. */
export const LabelVersionRequest = z.strictObject({ label_id: reference().nullable() });

/** Members of the body of POST /prompts/partials. */
export const partialFields = {
  name: name(),
  collection_id: reference().optional().describe('The ID or slug of a collection. Default: the default collection.'),
  string: template(),
  version_description: description(),
};

/** Members of PUT only. */
export const partialUpdateFields = {
  description: description().describe('Another name for version_description.'),
  status: versionStatus
    .optional()
    .describe('New templates cannot include an archived partial. Templates that already include it keep working.'),
};

export const PartialObject = z.looseObject({
  id: z.string(),
  object: z.literal('partial'),
  slug: z.string(),
  name: z.string(),
  collection_id: z.string(),
  string: z.string(),
  version: z.int(),
  version_id: z.string(),
  version_description: z.string().nullable(),
  prompt_partial_version_id: z.string(),
  last_version: z.int(),
  status: z.enum(['active', 'archived', 'deleted']),
  created_at: z.string(),
  last_updated_at: z.string(),
});

/** Members of the body of POST /collections. */
export const collectionFields = {
  name: name(),
  parent_collection_id: reference().nullish().describe('The ID or slug of the parent collection.'),
};

const collectionDetails = z.object({
  child_collections_count: z.int(),
  prompts_count: z.int(),
  child_collections_last_updated_at: z.string().nullable(),
  prompts_last_updated_at: z.string().nullable(),
});

export const CollectionObject = z.object({
  id: z.string(),
  object: z.literal('collection'),
  slug: z.string(),
  name: z.string(),
  workspace_id: z.string(),
  parent_collection_id: z.string().nullable(),
  is_default: z.boolean(),
  status: z.enum(['active', 'archived']),
  created_at: z.string(),
  last_updated_at: z.string(),
  collection_details: collectionDetails.optional(),
  child_collections: z
    .array(
      z.object({
        id: z.string(),
        name: z.string(),
        last_updated_at: z.string(),
        collection_details: collectionDetails,
      }),
    )
    .optional(),
});

/** Members of the body of POST /labels. A name is used in `slug@name`, so it cannot be a number or `latest`. */
export const labelFields = {
  name: z
    .string()
    .min(1)
    .max(100)
    .regex(/^(?!\d+$|latest$)[\p{L}\p{N}_.-]+$/u),
  description: text({ max: 2_000 }).nullish(),
  color_code: text({ max: 50 }).nullish(),
};

export const LabelObject = z.object({
  id: z.string(),
  object: z.literal('label'),
  name: z.string(),
  description: z.string().nullable(),
  color_code: z.string().nullable(),
  organisation_id: z.string(),
  workspace_id: z.string().nullable(),
  is_universal: z.boolean(),
  status: z.enum(['active', 'archived']),
  created_at: z.string(),
  last_updated_at: z.string(),
});
/** Body of POST /prompts/{slug}/render and /completions: other members belong to `hyperparameters`. */
export const RunPromptRequest = z
  .looseObject({
    variables: anyObject().nullish(),
    hyperparameters: anyObject().nullish().describe('Request parameters that replace those of the prompt.'),
    stream: z.boolean().nullish(),
    promptID: z.string().nullish().describe('Optional. Must be the prompt in the path.'),
    prompt_id: z.string().nullish().describe('Optional. Must be the prompt in the path.'),
  })
  .meta({ id: 'RunPromptRequest' });

export const RenderedPrompt = z.object({
  success: z.literal(true),
  data: anyObject(),
  missing_variables: z
    .array(z.string())
    .describe('Names in the template without a variable. They are rendered as empty.'),
  missing_required_variables: z
    .array(z.string())
    .describe(
      'The missing names that the template uses outside of sections and partials. A completion is rejected without them.',
    ),
});
