import { z } from 'zod';
import { slug } from '#libs/contracts/people/access-fields.ts';
import { text } from '#libs/contracts/scalars.ts';
import type { AnyResource } from './define-resource.ts';

/** Body of POST. A key of the organisation may choose the workspace; another key may only name its own. */
export function createBodySchema(kind: AnyResource): z.ZodObject {
  const hasWorkspace = (kind.owner ?? 'workspace') === 'workspace';
  return z.strictObject({
    ...kind.fields,
    ...(kind.slug ? { slug: slug().optional() } : {}),
    ...(hasWorkspace ? { workspace_id: z.string().min(1).max(200).optional() } : {}),
    ...(kind.hasShared ? { organisation_id: z.string().min(1).max(200).optional() } : {}),
  });
}

/** Body of PUT: what is absent stays, so no member has a default. */
export function updateBodySchema(kind: AnyResource): z.ZodObject {
  const { fields, immutable = [], updateFields = {}, owner = 'workspace' } = kind;
  const changeable = Object.entries(fields as z.ZodRawShape).filter(([name]) => !immutable.includes(name));
  const optional = changeable.map(([name, field]) => [name, withoutDefault(field as z.ZodType).optional()] as const);
  // Portkey's clients choose the workspace of a change here.
  const place = owner === 'workspace' ? { workspace_id: z.string().min(1).max(200).optional() } : {};
  return z.strictObject({ ...place, ...Object.fromEntries(optional), ...updateFields });
}

/** zod fills in a default inside of `.optional()`, too: a PUT of one member would reset the others. */
const withoutDefault = (field: z.ZodType): z.ZodType =>
  field instanceof z.ZodDefault ? (field.unwrap() as z.ZodType) : field;

/** Path parameters of a version, whose record is named by `name`. */
export const versionParams = (name: 'slug' | 'id') =>
  z.object({
    [name]: z.string(),
    version: text({ min: 1, max: 1_000 }).describe('its number, or its ID, which ends with `@` and the number'),
  }) as unknown as z.ZodObject<{ version: z.ZodString }>;
