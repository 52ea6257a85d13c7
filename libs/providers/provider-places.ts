/** Where a provider is and what a virtual key may hold for it, in words; `?` marks what may be left out. */
export type ProviderPlace = { address: string; settings: readonly string[] };

/** Of the providers whose address is made of settings, or who know settings at all. */
export const providerPlaces: Readonly<Record<string, ProviderPlace>> = {
  openai: { address: '', settings: ['openai_organization?', 'openai_project?', 'openai_beta?'] },
  anthropic: { address: '', settings: ['anthropic_version?', 'anthropic_beta?'] },
  vertex: {
    address: 'https://{vertex_region}-aiplatform.googleapis.com/v1',
    settings: ['vertex_region', 'vertex_project_id?', 'vertex_service_account_json?'],
  },
  bedrock: {
    address: 'https://bedrock-runtime.{aws_region}.amazonaws.com',
    settings: [
      'aws_region',
      'aws_access_key_id?',
      'aws_secret_access_key?',
      'aws_session_token?',
      'aws_role_arn?',
      'aws_external_id?',
    ],
  },
  azure: {
    address: 'https://{azure_resource_name}.openai.azure.com/openai',
    settings: [
      'azure_resource_name',
      'azure_deployment_id?',
      'azure_api_version?',
      'azure_ad_token?',
      'azure_entra_tenant_id?',
      'azure_entra_client_id?',
      'azure_entra_client_secret?',
      'azure_entra_scope?',
    ],
  },
};
