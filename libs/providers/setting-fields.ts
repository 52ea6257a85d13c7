// Made by `npm run generate` from the providers’ folders; a test compares it with them. It is plain data, because
// contracts also run in browsers, which cannot load the adapters.

/** The settings of all providers by their names in virtual keys and configs. */
export const settingFields = {
  openai_organization: {},
  openai_project: {},
  openai_beta: {},
  anthropic_version: {},
  anthropic_beta: {},
  vertex_region: {},
  vertex_project_id: {},
  vertex_service_account_json: { secret: true, json: true, authenticates: true },
  vertex_storage_bucket_name: {},
  aws_region: {},
  aws_access_key_id: {},
  aws_secret_access_key: { secret: true, authenticates: true },
  aws_session_token: { secret: true },
  aws_role_arn: { authenticates: true },
  aws_external_id: {},
  aws_auth_type: {},
  aws_s3_bucket: {},
  aws_bedrock_model: {},
  azure_resource_name: { alias: 'resource_name', portkeyName: 'resourceName' },
  azure_deployment_id: { alias: 'deployment_id', portkeyName: 'deploymentName', ofDeployment: 'name' },
  azure_api_version: { alias: 'api_version', portkeyName: 'apiVersion', ofDeployment: 'detail' },
  azure_auth_mode: { authenticates: true },
  azure_ad_token: { secret: true, authenticates: true },
  azure_entra_tenant_id: {},
  azure_entra_client_id: {},
  azure_entra_client_secret: { secret: true, authenticates: true },
  azure_entra_scope: {},
  azure_model_name: {},
  azure_managed_client_id: {},
  azure_workload_client_id: {},
  azure_foundry_url: {},
  azure_endpoint_name: {},
  huggingface_base_url: {},
  snowflake_account: {},
  workers_ai_account_id: {},
  fireworks_account_id: {},
} as const;

/** Headers that hold a provider’s credential; one that ends with a hyphen is a prefix. */
export const credentialHeaders = [
  'x-api-key',
  'x-goog-api-key',
  'x-amz-',
  'api-key',
  'ocp-apim-subscription-key',
] as const;
