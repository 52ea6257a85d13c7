import { providers } from '#libs/providers/provider-list.ts';

// Texts that several kinds share.

/** A provider for examples. */
export const exampleProvider: string = providers[0]?.id ?? '';

export const mappingErrors = {
  secret_reference_not_found: 'a secret reference in `secret_mappings` does not exist',
  secret_key_not_allowed: 'the organisation does not share this member of the secret',
  host_not_allowed: 'the secret reference does not allow this host',
};

export const policyErrors = {
  too_many_policies: 'the workspace has reached its limit of policies',
  organisation_not_found: '`organisation_id` is not this organisation',
};

export const archivedText = 'Archives the policy: it stops counting, and `status=archived` lists it.';

export const templateErrors = {
  invalid_template: 'the template is malformed; the message has the position and the reason',
  prompt_partial_not_found: 'the template includes a partial that does not exist in the workspace',
  prompt_too_large: 'the template exceeds its size limit',
  collection_not_found: '`collection_id` does not exist',
};

export const memberErrors = {
  higher_role: 'the role has more rights than the key of the request',
  too_many_members: 'the workspace has reached its limit of members',
};

export const keyErrors = {
  insufficient_scope: 'the key of the request lacks a right that it would grant',
  outlives_its_maker: 'the new key would expire later than the key of the request',
  limited_key: 'the key of the request has limits that would not apply to the new key',
};

export const createdKeyErrors = {
  insufficient_scope: '`revoke_keys`: a service key has more rights than the key of the request',
  missing_scope: '`revoke_keys`: the key of the request lacks `api_keys.write`',
  too_many_keys: '`revoke_keys`: the user created more service keys than one request can revoke',
};

export const serviceKeysText =
  'The service keys that the user created (`GET /v1/api-keys?created_by=…`) keep working unless `revoke_keys` is true.';
