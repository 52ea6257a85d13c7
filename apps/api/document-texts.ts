// Texts of the OpenAPI document that several operations share.

/**
 * Errors that any operation can return, so that operations do not repeat them.
 * @testOnly
 */
export const sharedErrors = {
  invalid_value: 'a parameter is invalid; `param` is its name, and the message says which values are allowed (400)',
  missing_required_parameter: 'a required parameter is missing (400)',
  unknown_parameter: 'the query or the body has a parameter that the operation does not support (400)',
  invalid_json: 'the body is not valid JSON (400)',
  missing_api_key: 'the request has no key (401)',
  invalid_api_key: 'the key is wrong, was revoked or has expired (401)',
  missing_scope: 'the key lacks the scope that `x-scope` of the operation names (403)',
  request_too_large: 'the body exceeds its size limit (413)',
  too_many_failed_attempts: 'this address sent too many wrong keys (429)',
  workspace_too_large: 'the records of the workspace do not fit into memory; delete some (503)',
  server_overloaded: 'the process is at capacity; try again (503)',
  database_unavailable: 'the database cannot be reached; try again (503)',
  request_log_full: 'calls cannot be recorded at the moment, so none are made (503)',
} as const;

/** Errors of every operation that calls a model. */
export const callErrors = {
  missing_credentials: 'the request does not name a provider',
  model_not_found: 'the request names no provider, and the model is not a public model that the key can use',
  model_cycle: 'the targets of public models lead back to the same model',
  model_too_large: 'the public model has too many targets, together with those that it names',
  virtual_key_not_found: 'the virtual key does not exist in this workspace',
  virtual_key_expired: 'the virtual key has expired',
  config_not_found: 'the config does not exist',
  config_override_not_allowed: 'the key has a fixed config, and the request names or changes a config',
  model_not_allowed: 'the credential does not allow this model',
  unsupported_operation: 'the provider does not support this operation',
  usage_limit_exceeded: 'a budget is used up',
  price_unknown: 'the call counts towards a cost budget, but its price is unknown',
  rate_limited: 'a rate limit of the gateway is reached',
  provider_rate_limited: 'the provider asked to wait, and the wait is not over',
  circuit_open: 'the target failed too often and is not called for a while',
  upstream_unreachable: 'the provider cannot be reached',
  upstream_headers_timeout: 'the provider did not answer in time',
};

const { missing_credentials, virtual_key_not_found, config_not_found } = callErrors;
export const targetErrors = { missing_credentials, virtual_key_not_found, config_not_found };

export const repeatErrors = {
  idempotency_key_reused: 'the `Idempotency-Key` was used with another body',
  request_in_progress: 'the first request with this `Idempotency-Key` is still in progress',
};

export const storageErrors = {
  storage_full: "the server's remaining disk space is reserved for results",
  storage_quota_exceeded: 'the workspace has reached its storage limit',
};

export const batchLimitErrors = {
  too_many_open_batches: 'the workspace has reached its limit of open batches; `Retry-After` says when to try again',
  too_many_queued_lines: 'the open batches of the workspace have reached the limit of queued lines',
};

export const workspaceErrors = { workspace_not_found: 'the query names a workspace that the key cannot use' };
export const organisationErrors = { organisation_key_required: 'the key belongs to a workspace' };
export const tooManyStreams = 'the process or the workspace has reached its limit of open streams';

/** The introduction of the OpenAPI document, in Markdown. */
export const documentText = `A self-hosted gateway and batch platform for language models, compatible with the OpenAI API.

**Version.** The version of this document (2.0.0) is the version of the interface specification that the API implements. \
\`GET /\` and \`GET /v1/session\` return the release of the server.

**Keys.** Send your key in \`x-gateway-api-key\` or as a bearer token. A key acts in one workspace, within its scopes. Records of other \
workspaces are reported as not found.

**Errors** have the format of OpenAI: \`error\` with \`message\`, \`type\`, \`param\` and \`code\`. For 429 and 503, \`Retry-After\` says when to \
try again, and \`x-should-retry: false\` means that a retry would fail. Each operation lists its own error codes; any operation can \
return these:

${Object.entries(sharedErrors)
  .map(([code, cause]) => `- \`${code}\`: ${cause}`)
  .join('\n')}

**Retries.** Send an \`Idempotency-Key\` to operations that create something. If you repeat the request with the same body within a day, \
you get the first answer, with \`idempotent-replayed: true\`. Another body returns 409.

**Lists** have \`data\`, \`has_more\`, \`first_id\` and \`last_id\`. To get the next page, send \`last_id\` as \`after\`. A page has at most 100 \
items unless the operation says otherwise.

**Times** are Unix seconds where OpenAI uses them (files, batches, fine-tuning jobs), and ISO 8601 elsewhere.`;
