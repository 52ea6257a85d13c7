import { GatewayError } from '#libs/kernel/errors.ts';

export const unknownConfigCode = 'config_not_found';

/**
 * The refusal of a config's slug or id: one answer for what never was, was deleted, and belongs to another workspace.
 * `param` null: the call named none, its key has it as its default.
 */
export const noSuchConfig = (name: string, param: string | null): GatewayError =>
  new GatewayError(
    'invalid_request',
    unknownConfigCode,
    param === null
      ? `The default config '${name.slice(0, 100)}' of this API key no longer exists. Send another one in ` +
          'x-gateway-config, or use a key with another default.'
      : `There is no config '${name.slice(0, 100)}'. GET /v1/configs lists those that you can use; a config itself is ` +
          'sent as JSON, like {"virtual_key":"my-openai"}.',
    { param: param ?? 'x-gateway-config' },
  );

/** The refusal of a stored config that this release does not understand. */
export const unreadableConfig = (slug: string, param: string | null): GatewayError =>
  new GatewayError(
    'unavailable',
    'config_unreadable',
    `This release cannot read the stored config '${slug}'. Store it again with PUT /v1/configs/${slug}.`,
    { param },
  );
