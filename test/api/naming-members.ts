/** A JSON Schema, as far as it is read here. */
export type Schema = {
  $ref?: string;
  type?: string | string[];
  enum?: unknown[];
  const?: unknown;
  default?: unknown;
  format?: string;
  minimum?: number;
  minLength?: number;
  anyOf?: Schema[];
  oneOf?: Schema[];
  allOf?: Schema[];
  items?: Schema;
  properties?: Record<string, Schema>;
  required?: string[];
};

export type DocumentedOperation = {
  parameters?: { in: string; name: string; schema: Schema }[];
  requestBody?: { content: Record<string, { schema: Schema }> };
};

/** A member of a body or a query parameter whose value can name a record; `[]` in its place stands for an item. */
export type NamingMember = { place: string[]; isInQuery: boolean; named: readonly string[] };

const depthMax = 4;

/**
 * What names records, by the end of its place, and the paths of these records. A name that looks like one of these (`looksNaming`)
 * has to be here, or in `ofNoRecord`.
 */
const namedBy: readonly [end: RegExp, records: readonly string[]][] = [
  [/(?:^|\.)(?:input_file_id|training_file|validation_file)$/, ['/v1/files']],
  [/(?:^|\.)workspace_(?:id|slug)$|workspaces\.\[\](?:\.id)?$/, ['/v1/admin/workspaces']],
  [/(?:^|\.)user_id$/, ['/v1/admin/workspaces/:/users']],
  [/(?:^|\.|-)virtual[_-]keys?$/, ['/v1/virtual-keys', '/v1/providers']],
  [/(?:^|\.|-)(?:config|configs|config_id|user_api_key_config)$/, ['/v1/configs']],
  [/(?:^|\.)(?:parent_)?collection_id$/, ['/v1/collections']],
  [/(?:^|\.)label_id$/, ['/v1/labels']],
  [/(?:^|\.)integration_id$/, ['/v1/integrations']],
  [/(?:^|\.)secret_reference_id$/, ['/v1/secret-references']],
  [/(?:^|\.)(?:input|output)_guardrails\.\[\]$/, ['/v1/guardrails']],
  [/(?:^|\.)(?:prompt_id|promptID|prompt_slug)$/, ['/v1/prompts']],
  [/(?:^|\.)(?:api_key_ids|principal_id)$/, ['/v1/api-keys']],
  [/(?:^|\.)feedback_id$/, ['/v1/feedback']],
  [/(?:^|\.)batch_id$/, ['/v1/batches']],
  [/^(?:after_id|before_id)$/, ['/v1/public-models']],
  [/(?:^|\.)export_id$/, ['/v1/logs/exports']],
];

const looksNaming = /(?:_id|_ids|Id|ID|_slugs?|_file)$|(?:^|\.|-)(?:configs?|virtual[_-]keys?|after)$/;

/** Of a provider, of a call, of any kind (events), or of what the record itself is to be called. */
const ofNoRecord =
  /(?:organisation_id|account_id|resource_id|trace_id|traceID|span_id|session_id|agent_id|custom_id|tool_call_id|ai_provider_id|provider_slug|base_model_slug|call_id|request_id|item_id|response_id|container_id|aws_external_id|vertex_project_id|azure_\w+_id|aws_\w+|access_key_id|workload_identity\w*|client_id|tenant_id|role_id|vault_\w+|checks\.\[\]\.id)$/;

/** Finds the naming members of an operation. Throws for one that is not known here. */
export function namingMembersOf(document: object, path: string, operation: DocumentedOperation): NamingMember[] {
  const found = new Map<string, NamingMember>();
  const add = (place: string[], isInQuery: boolean): void => {
    const text = place.join('.');
    const named = text === 'after' ? [path] : namedBy.find(([end]) => end.test(text))?.[1];
    if (named !== undefined) found.set(`${isInQuery}${text}`, { place, isInQuery, named });
    else if (looksNaming.test(text) && !ofNoRecord.test(text)) {
      throw new Error(`'${text}' of ${path} may name a record: add it to 'namedBy', or to 'ofNoRecord'`);
    }
  };
  const walk = (schema: Schema, place: string[], isInQuery: boolean): void => {
    if (place.length > depthMax) return;
    const own = resolved(document, schema);
    for (const part of variantsOf(own)) walk(part, place, isInQuery);
    if (own.enum === undefined && [own.type].flat().includes('string')) add(place, isInQuery);
    if (own.items) walk(own.items, [...place, '[]'], isInQuery);
    for (const [name, member] of Object.entries(own.properties ?? {})) walk(member, [...place, name], isInQuery);
  };
  for (const parameter of operation.parameters ?? []) {
    if (parameter.in === 'query') walk(parameter.schema, [parameter.name], true);
  }
  const body = toBodyObject(operation);
  if (body) walk(body, [], false);
  return [...found.values()];
}

/** The schema of the JSON body of an operation. */
export const toBodyObject = ({ requestBody }: DocumentedOperation): Schema | undefined =>
  requestBody?.content['application/json']?.schema;

const variantsOf = ({ anyOf = [], oneOf = [], allOf = [] }: Schema): Schema[] => [...anyOf, ...oneOf, ...allOf];

function resolved(document: object, schema: Schema): Schema {
  if (schema.$ref === undefined) return schema;
  const keys = schema.$ref.split('/').slice(1);
  return keys.reduce<unknown>((value, key) => (value as Record<string, unknown>)[key], document) as Schema;
}

/** A body with only what a schema requires, and with a value at a place. */
export function sampleWith(document: object, schema: Schema, place: readonly string[], value: unknown): unknown {
  const own = resolved(document, schema);
  const [step, ...rest] = place;
  if (step === undefined && place.length === 0 && value !== undefined) return value;
  const variants = variantsOf(own);
  if (variants.length > 0) {
    const fitting = variants.find((variant) => step === undefined || leadsTo(document, variant, place));
    return sampleWith(document, fitting ?? (variants[0] as Schema), place, value);
  }
  if (step === '[]') return [sampleWith(document, own.items ?? {}, rest, value)];
  if (own.properties !== undefined || own.type === 'object') {
    const names = new Set([...(own.required ?? []), ...(step === undefined ? [] : [step])]);
    const members = [...names].map((name) => {
      const member = own.properties?.[name] ?? {};
      return [name, sampleWith(document, member, name === step ? rest : [], name === step ? value : undefined)];
    });
    return Object.fromEntries(members);
  }
  return plainValue(document, own);
}

function leadsTo(document: object, schema: Schema, place: readonly string[]): boolean {
  const own = resolved(document, schema);
  const [step, ...rest] = place;
  const variants = variantsOf(own);
  if (variants.length > 0) return variants.some((variant) => leadsTo(document, variant, place));
  if (step === undefined) return [own.type].flat().includes('string');
  const next = step === '[]' ? own.items : own.properties?.[step];
  return next !== undefined && leadsTo(document, next, rest);
}

function plainValue(document: object, { const: only, enum: some, default: usual, type, ...schema }: Schema): unknown {
  const given = only ?? usual ?? some?.[0];
  if (given !== undefined) return given;
  const [first] = [type].flat();
  if (first === 'integer' || first === 'number') return Math.max(1, schema.minimum ?? 1);
  if (first === 'boolean') return false;
  if (first === 'array') return [sampleWith(document, schema.items ?? {}, [], undefined)];
  if (first === 'null') return null;
  if (schema.format === 'email') return 'somebody@example.com';
  if (schema.format === 'date-time') return '2030-01-31T00:00:00Z';
  return 'x'.repeat(Math.max(1, schema.minLength ?? 1));
}
